"""The kinds of mistake that a user can mend; `main` prints each as one sentence."""


class UsageError(ValueError):
  """A flag or a combination of flags that cannot work; the program ends with code 2."""


class InputError(ValueError):
  """A file, folder, image or checkpoint that cannot be used; the program ends with code 1."""


class NotFiniteError(InputError):
  """A training whose loss is no longer a finite number."""
