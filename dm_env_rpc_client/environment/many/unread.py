"""Answers whose values have not been read yet, collected for the object that stores them."""

from __future__ import annotations

from typing import Protocol

import dm_env

from dm_env_rpc_client.protocol.step_layout import StepLayout, UnreadStep
from dm_env_rpc_client.protocol.timesteps import MidSteps

_UNREAD_BYTES = 1 << 16
"""The maximum size, in bytes, of collected answers. Larger answers are copied one by one, while
they are still in the processor's caches and the next answers are in flight."""


class Consumer(Protocol):
    """A class, such as `Rows` or one that splits batches, that stores environments' answers."""

    def put(self, index: int, timestep: dm_env.TimeStep) -> bool:
        """Store the TimeStep of the environment that has `index` in the pool.

        Returns:
          Whether to begin the next sequence at once; if so, the environment arrives with the
          TimeStep of that sequence.
        """

    def put_mid_steps(self, indices: list[int], steps: MidSteps) -> object:
        """Store the MID steps of the environments that have these `indices` in the pool.

        After an error, it is called again for each step alone, to find the invalid ones.
        """


class Unread:
    """MID steps that the consumer has not received yet.

    Args:
      consumer: the consumer.
      failures: a mapping that receives the errors of the consumer, by the index of the
        environment.

    Attributes:
      indices: the indices of their environments, also after an error or interrupt in `consume`.
    """

    def __init__(self, consumer: Consumer, failures: dict[int, Exception]):
        self.indices: set[int] = set()
        self._consumer = consumer
        self._failures = failures
        self._groups: dict[StepLayout, tuple[list[int], list[UnreadStep]]] = {}
        self._bytes = 0

    def add(self, index: int, step: UnreadStep) -> None:
        """Add the step of an environment to the collected steps."""
        indices, steps = self._groups.setdefault(step.layout, ([], []))
        indices.append(index)
        steps.append(step)
        self.indices.add(index)
        self._bytes += step.layout.size
        if self._bytes > _UNREAD_BYTES:
            self.consume()

    def consume(self) -> None:
        """Pass all collected steps to the consumer."""
        groups, self._groups, self._bytes = self._groups, {}, 0
        for indices, steps in groups.values():
            try:
                self._consumer.put_mid_steps(indices, MidSteps(steps))
            except Exception:
                # The error does not tell which step it concerns.
                self._consume_each(indices, steps)
            else:
                self.indices.difference_update(indices)

    def _consume_each(self, indices: list[int], steps: list[UnreadStep]) -> None:
        """Pass steps to the consumer one by one, after it has failed to store them together."""
        for index, step in zip(indices, steps, strict=True):
            try:
                self._consumer.put_mid_steps([index], MidSteps([step]))
            except Exception as error:
                self._failures[index] = error
            else:
                self.indices.discard(index)
