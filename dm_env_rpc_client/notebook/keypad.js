// A box that receives key presses while it has the focus.

const SYMBOLS = {
  ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", " ": "space", Enter: "enter",
};

function keyOf(event) {
  return event.key.length === 1 ? event.key.toLowerCase() : event.key;
}

function render({ model, el }) {
  const pad = document.createElement("div");
  pad.className = "dm-env-keypad";
  pad.tabIndex = 0;
  // JupyterLab ignores its own shortcuts in elements with this attribute.
  pad.setAttribute("data-lm-suppress-shortcuts", "true");
  const hint = document.createElement("span");
  hint.className = "dm-env-keypad-hint";
  pad.append(hint);
  for (const [key, meaning] of model.get("legend")) {
    const entry = document.createElement("span");
    const cap = document.createElement("kbd");
    cap.textContent = SYMBOLS[key] ?? key;
    entry.append(cap, " " + meaning);
    pad.append(entry);
  }
  el.append(pad);

  const known = new Set(model.get("legend").map(([key]) => key));
  const held = new Set();
  const tell = (kind, key, repeated) => model.send({ kind, key, repeated });
  const release = () => {
    held.forEach((key) => tell("up", key, false));
    held.clear();
  };
  const showFocus = (focused) => {
    hint.textContent = focused ? "keys are active" : "click here to use the keys";
    pad.classList.toggle("dm-env-focused", focused);
  };
  showFocus(false);
  pad.addEventListener("focus", () => showFocus(true));
  pad.addEventListener("blur", () => {
    release();
    showFocus(false);
  });
  pad.addEventListener("keydown", (event) => {
    const key = keyOf(event);
    if (event.ctrlKey || event.altKey || event.metaKey || !known.has(key)) return;
    event.preventDefault();
    event.stopPropagation();
    held.add(key);
    tell("down", key, event.repeat);
  });
  pad.addEventListener("keyup", (event) => {
    if (held.delete(keyOf(event))) tell("up", keyOf(event), false);
  });
}

export default { render };
