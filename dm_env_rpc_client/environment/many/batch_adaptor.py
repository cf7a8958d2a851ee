"""An adaptor for a batched world, which also provides the specs of a single row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.environment.base_adaptor import Extensions
from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor, Rejoin
from dm_env_rpc_client.environment.many.rows import RowSpecs
from dm_env_rpc_client.environment.requested import AutoObservations
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.protocol.step_codec import StepCodec
from dm_env_rpc_client.protocol.timesteps import DISCOUNT, REWARD
from dm_env_rpc_client.tensors.columns import row_tensor_spec
from dm_env_rpc_client.tensors.spec_manager import SpecManager
from dm_env_rpc_client.tensors.specs import tensor_spec_to_dm_env_spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dm_env import specs as dm_env_specs

    from dm_env_rpc_client.client.connection import Connection


def _is_of_rows(name: str, spec: dm_env_specs.Array) -> bool:
    """Whether an observation contains one value for each row of a batch."""
    return name not in batches.OF_BATCH and len(spec.shape) > 0


def is_batched(specs: dm_env_rpc_pb2.ActionObservationSpecs) -> bool:
    """Whether a world with the given specs is a batch."""
    return batches.num_rows({spec.name: spec for spec in specs.observations.values()}) is not None


class BatchAdaptor(DmEnvAdaptor):
    """All rows of a batched world, stepped together. `DmEnvAdaptor` documents the arguments.

    The adaptor also requests the step types and the errors of the rows.

    Attributes:
      count: the number of rows.

    Raises:
      SpecError: the world is not batched. Otherwise as `DmEnvAdaptor`.
    """

    _leaves_unread = False

    def __init__(
        self,
        connection: Connection,
        specs: dm_env_rpc_pb2.ActionObservationSpecs,
        requested_observations: Sequence[str] | AutoObservations | None = None,
        nested_tensors: bool = False,
        extensions: Extensions[Connection] | None = None,
        rejoin: Rejoin | None = None,
        unwrap_single: bool = False,
    ):
        # Step types, row errors and infos belong to every batch, whatever the user requests.
        if not isinstance(requested_observations, AutoObservations | str | None):
            offered = {spec.name for spec in specs.observations.values()}
            requested_observations = [
                *requested_observations,
                *(name for name in batches.OF_BATCH if name in offered),
            ]
        super().__init__(
            connection,
            specs,
            requested_observations,
            nested_tensors,
            extensions,
            rejoin,
            unwrap_single,
        )
        self._read_rows()

    @property
    def action_rows(self) -> Mapping[str, dm_env_specs.Array]:
        """The specs of one row's actions, by flat name."""
        return self.row_specs().actions

    @property
    def has_row_errors(self) -> bool:
        """Whether rows are separate environments, so that one row can fail alone."""
        return batches.ROW_ERRORS in self._observation_specs

    def row_specs(self) -> RowSpecs:
        """Return the specs of one row, as a separate environment would have them."""
        # A Reset with settings may have changed the specs.
        if self._read is not self._adopted:
            self._read_rows()
        return self._row_specs

    def check_row(self, action: Mapping[str, Any], place: int) -> None:
        """Raise SpecError, as a separate environment would, if a row's action does not conform.

        Args:
          action: arrays [N, ...] by flat name.
          place: the index of the row.
        """
        rows = {
            self._actions.name_to_uid(name): row_tensor_spec(
                self._actions.name_to_spec(name), self.count
            )
            for name in self.action_rows
        }
        # Only for the error of an invalid action, which is that of an environment of its own.
        codec = StepCodec(
            SpecManager(rows, "action", self._limits),
            SpecManager({}, "observation", self._limits),
            (),
            self._limits,
        )
        codec.encode({name: values[place] for name, values in action.items()})

    def _specs_by_kind(self) -> dict[str, Any]:
        """Return the specs of one row."""
        own = self.row_specs()
        return {
            "action_spec": own.actions,
            "observation_spec": own.observations,
            "reward_spec": own.reward,
            "discount_spec": own.discount,
        }

    def _read_rows(self) -> None:
        observations = self._observations
        if self._num_rows is None or batches.STEP_TYPE not in self._observation_specs:
            raise SpecError(
                f"world {self.world_name!r} is not batched; expected the observations "
                f"{batches.STEP_TYPE!r} (UINT8) and {REWARD!r}, each with one value per row"
            )
        self.count = self._num_rows

        def of(manager: SpecManager, names: Iterable[str]) -> dict[str, dm_env_specs.Array]:
            found = {
                name: row_tensor_spec(manager.name_to_spec(name), self.count) for name in names
            }
            return {name: tensor_spec_to_dm_env_spec(spec) for name, spec in found.items()}

        ends = of(observations, (REWARD, DISCOUNT))
        self._row_specs = RowSpecs(
            of(self._actions, (n for n in self._action_specs if n != batches.STEP_MASK)),
            of(
                observations,
                (n for n, spec in self._observation_specs.items() if _is_of_rows(n, spec)),
            ),
            ends[REWARD],
            ends[DISCOUNT],
        )
        self._read = self._adopted
