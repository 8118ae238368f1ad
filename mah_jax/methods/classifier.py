"""The plainest deep baseline: a softmax classifier, each class with an assigned codeword."""

from __future__ import annotations

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np

from mah_jax import codebook
from mah_jax.methods import base
from mah_jax.models import heads


def make(options: base.NoOptions, task: base.Task) -> base.DeepMethod:
  """Makes a classifier.

  An image gets the codeword of its likeliest class, in every length. The database's codes are
  those of its true labels, which methods that solve for codes come close to.
  """
  del options
  labels = task.labels
  num_labels = labels.shape[1]

  @functools.cache  # a restored run asks for codewords only when it encodes
  def books():
    return codebook.codebook(num_labels, task.code_lengths, task.seed)

  def network(make_backbone):
    return heads.HashNetwork(make_backbone(), heads.LinearHead(num_labels))

  def targets(codes, sampled, epoch):
    del codes, epoch
    wanted = labels[sampled].astype(np.float32)
    return wanted / np.maximum(wanted.sum(axis=1, keepdims=True), 1)  # [m, L]

  def loss(outputs, targets, seen):
    logits, = outputs
    entropy = cross_entropy(logits, targets[seen.position])
    return entropy, {'cross_entropy': entropy}

  def init_codes():
    return tuple(codebook.codes_from_labels(labels, words) for words in books())

  def embeddings(outputs):
    likeliest = jnp.argmax(outputs[0], axis=1)
    return tuple(jnp.asarray(words)[likeliest] for words in books())

  return base.DeepMethod(
      network, targets, loss, init_codes, learned=base.identity,
      query_embeddings=embeddings, database_embeddings=embeddings, resamples=True)


def cross_entropy(logits: jax.Array, wanted: jax.Array) -> jax.Array:
  """Cross entropy of each row with the wanted shares of its labels. [b, L], [b, L] -> [b]."""
  chex.assert_equal_shape([logits, wanted])
  return -jnp.sum(wanted * jax.nn.log_softmax(logits), axis=1)


SPEC = base.Spec(make)
