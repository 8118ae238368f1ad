"""MAH in JAX: images hashed into extremely few bits, several code lengths from one network."""

__version__ = '0.1.0'
