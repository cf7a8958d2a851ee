"""PPO learns a simulator at a server as one in its own process: the same weights, byte for byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from tests.simulators import factories, kinds

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),
]

ROWS, STEPS, UPDATES = 64, 64, 12
GAMMA, DECAY = 0.99, 0.95


class Learner:
    """PPO in torch, for the poles of CartPole."""

    def __init__(self, torch: Any):
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.torch = torch
        self.policy, self.value = (
            torch.nn.Sequential(
                torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, outputs)
            )
            for outputs in (2, 1)
        )
        self._parameters = [*self.policy.parameters(), *self.value.parameters()]
        self._optimizer = torch.optim.Adam(self._parameters, lr=5e-3)

    def learn(self, envs: Any) -> list[float]:
        """Returns the mean reward per end of an episode, of each update."""
        observation = self._tensor(envs.reset(seed=factories.SEED)[0])
        lengths = []
        for _ in range(UPDATES):
            taken, ends = [], 0
            for _ in range(STEPS):
                with self.torch.no_grad():
                    action = self._policy(observation).sample()
                following, reward, terminated, truncated, infos = envs.step(action.numpy())
                final = self._tensor(infos["final_observation"])
                others = map(self._tensor, (reward.astype(np.float32), terminated, truncated))
                taken.append((observation, action, final, *others))
                observation = self._tensor(following)
                ends += int((terminated | truncated).sum())
            self._update(*map(self.torch.stack, zip(*taken, strict=True)))
            lengths.append(STEPS * ROWS / max(ends, 1))
        return lengths

    def weights(self) -> bytes:
        return b"".join(each.detach().numpy().tobytes() for each in self._parameters)

    def _tensor(self, array: Any) -> Any:
        return self.torch.from_numpy(np.array(array))

    def _policy(self, observation: Any) -> Any:
        return self.torch.distributions.Categorical(logits=self.policy(observation))

    def _update(
        self, seen: Any, actions: Any, finals: Any, rewards: Any, terminated: Any, truncated: Any
    ) -> None:
        torch = self.torch
        with torch.no_grad():
            values, following = self.value(seen)[..., 0], self.value(finals)[..., 0]
            before = self._policy(seen).log_prob(actions)
        errors = rewards + GAMMA * following * ~terminated - values
        goes_on = ~(terminated | truncated)
        gained, carried = torch.zeros_like(errors), torch.zeros(ROWS)
        for t in reversed(range(STEPS)):
            carried = errors[t] + GAMMA * DECAY * goes_on[t] * carried
            gained[t] = carried
        targets = gained + values
        gained = (gained - gained.mean()) / gained.std()
        for _ in range(8):
            ratio = (self._policy(seen).log_prob(actions) - before).exp()
            gain = torch.min(ratio * gained, ratio.clamp(0.8, 1.2) * gained).mean()
            loss = (self.value(seen)[..., 0] - targets).pow(2).mean()
            self._optimizer.zero_grad()
            (0.01 * loss - gain).backward()
            self._optimizer.step()


def test_the_weights_are_the_same_through_the_wire() -> None:
    pytest.importorskip("gymnax")
    torch = pytest.importorskip("torch")
    kind = kinds.ROWS["gymnax_cart_pole"]
    own = Learner(torch)
    lengths = own.learn(kinds.InProcess(kind, ROWS))
    assert lengths[-1] > 3 * lengths[0]
    remote = Learner(torch)
    assert remote.weights() != own.weights()
    with (
        kinds.served(kind.factory, "--autoreset-mode", kind.mode) as address,
        RemoteVectorEnv(address, ROWS) as envs,
    ):
        assert remote.learn(envs) == lengths
    assert remote.weights() == own.weights()
