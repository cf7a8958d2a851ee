"""The explorer on real servers, its widgets pressed by hand; for the browser see `test_browser`."""

from __future__ import annotations

import contextlib
import html
import io
import re
from collections.abc import Iterator
from typing import Any

import dm_env
import ipywidgets
import numpy as np
import PIL.Image
import pytest
from dm_env import specs

from dm_env_rpc_client import DmEnvAdaptor, connect, create_and_join_world, make
from dm_env_rpc_client.bridges.env_c_api import EnvCApiEnvironment
from dm_env_rpc_client.errors import PropertyNotFoundError, SpecError
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.notebook import Explorer, explore
from dm_env_rpc_client.notebook.property_panel import LocalProperties
from dm_env_rpc_client.server import Catch, Properties, Server, serve
from tests.bridges.env_c_api.compiling import compile_library
from tests.notebook.waiting import wait_for
from tests.support.environments import Broken, Constant, Robot
from tests.travelling.environments.of_dm_env import ENDLESS, Timed


def widgets_in(widget: Any, kind: type) -> Iterator[Any]:
    if isinstance(widget, kind):
        yield widget
    for child in getattr(widget, "children", ()):
        yield from widgets_in(child, kind)


class Hands:
    """Presses and reads what is on an explorer, as a person would."""

    def __init__(self, explorer: Explorer):
        self.explorer = explorer

    def press(self, label: str) -> None:
        """Presses the button with this label, once there is one: it changes after the pictures."""

        def labelled() -> list[ipywidgets.Button]:
            buttons = widgets_in(self.explorer, ipywidgets.Button)
            return [each for each in buttons if each.description == label]

        (button,) = wait_for(labelled, f"a button {label!r}")
        button.click()

    def text(self) -> str:
        """All that there is to read, without its markup."""
        texts = [widget.value for widget in widgets_in(self.explorer, ipywidgets.HTML)]
        return " ".join(html.unescape(re.sub(r"<[^>]*>", "", " ".join(texts))).split())

    def pictures(self) -> list[bytes]:
        return [image.value for image in widgets_in(self.explorer, ipywidgets.Image)]

    def wait_for(self, text: str) -> None:
        try:
            wait_for(lambda: text in self.text(), text, seconds=10)
        except AssertionError:
            raise AssertionError(f"waited for {text!r}; there is: {self.text()}") from None

    def stop(self) -> None:
        self.press("Stop")
        self.wait_for_the_stop()

    def wait_for_the_stop(self) -> None:
        wait_for(lambda: self.explorer._run_button.description == "Run", "the stop")

    def type(self, kind: str, key: str) -> None:
        content = {"kind": kind, "key": key, "repeated": False}
        self.explorer._keyboard.pad._handle_custom_msg(content, [])


@contextlib.contextmanager
def exploring(env: dm_env.Environment, **options: Any) -> Iterator[Hands]:
    explorer = explore(env, **options)
    try:
        yield Hands(explorer)
    finally:
        explorer.close()


@pytest.fixture
def catch(catch_server: Server) -> Iterator[DmEnvAdaptor]:
    with make(catch_server.address, {"rows": 6, "seed": 0}) as env:
        yield env


def test_a_press_of_a_button_steps_with_its_value_and_the_picture_changes(
    catch: DmEnvAdaptor,
) -> None:
    with exploring(catch, labels={"paddle": ["left", "stay", "right"]}) as hands:
        hands.wait_for("episode 1 · step 0")
        assert "board" in hands.text()
        before = hands.pictures()
        assert bytes(before[0]).startswith(b"\x89PNG")
        hands.press("right")
        hands.wait_for("step 1 · reward 0 · return 0 · action paddle 2")
        assert hands.pictures() != before
        hands.press("Step")
        hands.wait_for("step 2 · reward 0 · return 0 · action paddle 2")


def test_what_another_cell_does_is_shown_and_nothing_is_stepped(catch: DmEnvAdaptor) -> None:
    with exploring(catch) as hands:
        hands.wait_for("episode 1 · step 0")
        before = hands.pictures()
        timestep = catch.step({"paddle": 2})
        hands.wait_for("step 1 · reward 0 · return 0 · action paddle 2")
        assert hands.pictures() != before
        while not timestep.last():
            timestep = catch.step({"paddle": 1})
        hands.wait_for("step 5")
        hands.wait_for("the episode is over; the next step begins a new one")
        catch.step({"paddle": 1})
        hands.wait_for("episode 2 · step 0")
        assert catch.reset().first()
        hands.wait_for("episode 3 · step 0")
        hands.press("Step")
        hands.wait_for("episode 3 · step 1")
    assert not {"step", "reset"} & vars(catch).keys()
    assert catch.step({"paddle": 1}).mid()  # The second of the episode.


def test_a_run_follows_what_is_chosen(catch: DmEnvAdaptor) -> None:
    seen: list[dm_env.TimeStep] = []

    def policy(timestep: dm_env.TimeStep) -> Any:
        seen.append(timestep)
        return {"paddle": 2}

    with exploring(catch, policy=policy, rate=50.0) as hands:
        (chosen,) = widgets_in(hands.explorer, ipywidgets.Dropdown)
        assert chosen.options == ("the policy", "the controls", "random")
        hands.press("Run")
        hands.wait_for("action paddle 2")
        assert seen[0].first()
        chosen.value = "random"
        for paddle in ("0", "1"):
            hands.wait_for(f"action paddle {paddle}")
        chosen.value = "the controls"
        hands.press("1")
        hands.wait_for("action paddle 1")


def test_the_controls_follow_a_policy() -> None:
    torques = [0.25]

    def policy(_: dm_env.TimeStep) -> Any:
        torque = np.full(3, torques[-1], np.float32)
        return {"arm": {"torque": torque, "grip": True}, "mode": 3, "speech": "hi"}

    with exploring(Robot(), policy=policy, rate=60.0) as hands:
        sliders = list(widgets_in(hands.explorer, ipywidgets.FloatSlider))
        (speech,) = widgets_in(hands.explorer, ipywidgets.Text)

        def torque() -> list[float]:
            return [slider.value for slider in sliders]

        hands.press("Run")
        wait_for(lambda: torque() == [0.25] * 3, "the torque of the policy")
        wait_for(lambda: speech.value == "hi", "its speech")
        torques.append(-0.5)
        wait_for(lambda: torque() == [-0.5] * 3, "another torque")
        hands.stop()
        (chosen,) = widgets_in(hands.explorer, ipywidgets.Dropdown)
        chosen.value = "the controls"
        sliders[0].value = 1.0
        hands.press("Run")
        hands.wait_for("reward 0 ")
        assert torque() == [1.0, -0.5, -0.5]


def test_a_large_image_is_sharper_when_it_stands_still() -> None:
    def shows(*size: int) -> bool:
        # There is none until the first is made.
        return [PIL.Image.open(io.BytesIO(data)).size for data in hands.pictures()] == [size]

    camera = Constant({"camera": specs.Array((900, 1200, 3), np.uint8)})
    with exploring(camera, rate=50.0) as hands:
        hands.wait_for("step 0")
        wait_for(lambda: shows(1200, 900), "the picture of the reset")
        hands.press("Run")
        wait_for(lambda: shows(640, 480), "a picture of the run")
        hands.press("Stop")
        wait_for(lambda: shows(1200, 900), "the last picture")


def test_keys_step_and_steer(catch: DmEnvAdaptor) -> None:
    with exploring(catch, action={"paddle": 1}, rate=50.0) as hands:
        hands.wait_for("step 0")
        hands.type("down", "ArrowLeft")
        hands.type("up", "ArrowLeft")
        hands.wait_for("step 1 · reward 0 · return 0 · action paddle 0")
        hands.type("down", " ")
        hands.wait_for("step 2 · reward 0 · return 0 · action paddle 1")
        hands.type("down", "r")
        hands.wait_for("episode 2 · step 0")
        hands.type("down", "Enter")
        hands.wait_for("action paddle 1")
        hands.type("down", "ArrowRight")
        hands.wait_for("action paddle 2")
        hands.type("up", "ArrowRight")
        hands.wait_for("action paddle 1")
        hands.type("down", "Enter")
        wait_for(lambda: not hands.explorer._stepper.is_running, "the stop")


def test_every_kind_of_action_and_observation_goes_there_and_comes_back() -> None:
    with serve(Robot) as server, make(server.address) as env, exploring(env) as hands:
        hands.wait_for("episode 1")
        assert len(hands.pictures()) == 2
        sliders = list(widgets_in(hands.explorer, ipywidgets.FloatSlider))
        sliders[0].value, sliders[2].value = 0.5, -0.25
        (text,) = widgets_in(hands.explorer, ipywidgets.Text)
        text.value = "<b>hello</b>"
        hands.press("Step")
        hands.wait_for("step 1")
        assert "<b>hello</b>" in hands.text()
        assert "reward 0.25" in hands.text()
        hands.press("3")
        hands.wait_for("mode 3")


def unusual() -> Timed:
    """Its action is a tuple, its observation is one array."""
    action = (specs.DiscreteArray(2, name="press"), specs.Array((2,), np.int16, "aim"))
    spec = specs.Array((3,), np.float32, "place")
    return Timed(0, ENDLESS, spec, lambda env: np.full(3, env.steps, np.float32), action)


def test_an_environment_need_not_be_remote_nor_a_dictionary() -> None:
    env = unusual()
    with exploring(env, keys={"x": (1,)}) as hands:
        hands.wait_for("episode 1")
        assert "Properties" not in hands.text()
        (text,) = widgets_in(hands.explorer, ipywidgets.Text)
        text.value = "[5, -6]"
        hands.press("1")
        hands.wait_for("step 1")
        press, aim = env.action
        assert press == 1
        assert aim.tolist() == [5, -6]
        assert aim.dtype == np.int16
        assert "1, 1, 1" in hands.text()


def test_what_has_no_control_is_left_out_and_said() -> None:
    class Posts(Robot):
        def action_spec(self) -> Any:
            return {"letter": specs.Array((), object, "letter"), **super().action_spec()}

    with exploring(Posts()) as hands:
        assert "not sent: there is no control for Array(shape=(), dtype=dtype('O')" in hands.text()
        hands.press("Step")
        hands.wait_for("step 1")


def test_a_value_that_does_not_fit_is_told_and_nothing_is_sent() -> None:
    with exploring(unusual()) as hands:
        hands.wait_for("episode 1")
        (text,) = widgets_in(hands.explorer, ipywidgets.Text)
        text.value = "[1, 99999]"
        hands.press("Step")
        hands.wait_for("SpecError: action '1'")
        assert hands.explorer._stepper._progress.steps == 0
        text.value = "[1, 2]"
        hands.press("Step")
        hands.wait_for("step 1")
        assert "SpecError" not in hands.text()


def test_errors_of_the_server_are_shown_in_the_widget() -> None:
    with (
        serve(lambda: Broken("step", "ValueError")) as server,
        make(server.address) as env,
        exploring(env, rate=50.0) as hands,
    ):
        hands.wait_for("episode 1")
        hands.press("Run")
        hands.wait_for("DmEnvRpcError: the server answered")
        assert "broken in step" in hands.text()
        hands.wait_for_the_stop()
        hands.press("Reset")
        hands.wait_for("episode 2")
        assert "DmEnvRpcError" not in hands.text()


def test_an_observation_that_cannot_be_shown_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise ValueError("no colours left")

    monkeypatch.setattr("dm_env_rpc_client.tensors.displays.images.picture", fail)
    with exploring(Catch()) as hands:
        hands.wait_for("the observation cannot be shown: ValueError('no colours left')")
        hands.press("Step")
        hands.wait_for("step 1")


class Tunable(Catch):
    gravity = 9.81
    name = "meadow"

    def __init__(self) -> None:
        super().__init__()
        self.properties = Properties()
        self.properties.add(
            "odd", lambda: [1, 2, 3], spec=specs.BoundedArray((2,), int, 0, 5), setter=self._refuse
        )
        self.properties.expose(self, "gravity", prefix="physics")
        self.properties.expose(self, "name")
        self.properties.add("secret", setter=self._refuse, spec=specs.DiscreteArray(4))
        self.properties.add("score", lambda: np.arange(3.0), description="<so> far")

    @staticmethod
    def _refuse(value: int) -> None:
        raise ValueError(f"{value} is not it")


def test_properties_are_read_when_asked_for_and_edited() -> None:
    with (
        serve(Tunable) as server,
        connect(server.address) as connection,
        create_and_join_world(connection).env as env,
        exploring(env) as hands,
    ):
        hands.wait_for("Properties")
        assert "physics" not in hands.text()
        hands.press("Read properties")
        hands.wait_for("6 properties")
        assert "physics.gravity" in hands.text()
        assert "<so> far" in hands.text()
        panel = hands.explorer._panel
        assert panel is not None
        gravity = panel.control("physics.gravity").widget
        assert gravity.value == "9.81"
        gravity.value = "1.62"
        hands.wait_for("physics.gravity = 1.62 written")
        properties = PropertiesExtension(connection)
        assert properties["physics.gravity"] == 1.62
        panel.control("name").widget.value = "hill"
        hands.wait_for("name = hill written")
        assert properties["name"] == "hill"
        gravity.value = "heavy"
        hands.wait_for("expected a number or a list")
        panel.control("secret").widget.children[3].click()
        hands.wait_for("PropertyValueError")
        assert "3 is not it" in hands.text()
        assert properties["physics.gravity"] == 1.62


def test_a_library_in_c_is_explored_with_its_properties() -> None:
    library = compile_library("complete", "2.2")
    with (
        EnvCApiEnvironment(library, "complete_connect", version="2.2") as env,
        exploring(env, rate=50.0) as hands,
    ):
        hands.wait_for("episode 1")
        hands.press("Run")
        hands.wait_for("step 3")
        hands.press("Stop")
        hands.press("Read properties")
        panel = hands.explorer._panel
        assert panel is not None
        properties = panel._properties
        assert isinstance(properties, LocalProperties)
        wait_for(lambda: panel._note.value.endswith(" properties"), "all of them")
        key = next(spec.key for spec in properties.walk() if spec.readable and spec.writable)
        panel.control(key).widget.value = "7"
        hands.wait_for(f"{key} = 7 written")
        assert env.read_property(key) == "7"
        with pytest.raises(PropertyNotFoundError, match="nothing"):
            properties.read("nothing")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"action": {"jump": 1}}, "unknown action 'jump'; actions: 'paddle'"),
        ({"labels": {"jump": ["a"]}}, "labels: unknown action 'jump'; actions: 'paddle'"),
        ({"labels": {"paddle": ["a"]}}, "3 values, but the number of labels is 1"),
        ({"keys": {"a": {"jump": 1}}}, "key 'a'"),
        ({"action": {"paddle": 7}}, "'paddle'.*outside"),
        ({"keys": {"a": {"paddle": 7}}}, "key 'a'.*outside"),
        ({"rate": 0.0}, "rate"),
        ({"rate": 1000.0}, "rate"),
    ],
)
def test_what_cannot_be_is_refused_at_once(
    catch: DmEnvAdaptor, options: dict[str, Any], error: str
) -> None:
    with pytest.raises(SpecError, match=error):
        explore(catch, **options)


def test_closing_leaves_the_environment_open(catch: DmEnvAdaptor) -> None:
    explorer = explore(catch)
    explorer.close()
    explorer.close()
    assert catch.reset().first()


def test_a_row_of_a_batch_is_selected(catch_server: Server) -> None:
    rows = {"num_envs": 3, "rows.seed": [1, 2, 3]}
    with make(catch_server.address, rows) as env, exploring(env) as hands:
        hands.wait_for("episode 1 · step 0")
        assert "step_type" not in hands.text()
        _, rows_list = widgets_in(hands.explorer, ipywidgets.Dropdown)
        assert (rows_list.description, rows_list.options) == ("row", (0, 1, 2))
        first = hands.pictures()
        hands.press("Step")
        hands.wait_for("step 1 · reward 0 · return 0 · action paddle 1")
        rows_list.value = 2
        hands.wait_for("episode 2 · step 0")
        wait_for(lambda: hands.pictures() != first, "the picture of another row")
        for _ in range(8):
            hands.press("Step")
        hands.wait_for("the episode is over")
        hands.press("Step")
        hands.wait_for("episode 3 · step 0")
