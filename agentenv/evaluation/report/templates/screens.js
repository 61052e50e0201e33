// Screens of an episode with the actions on them; needs el(). Places are pixels of the screen, so that the layer above the
// picture has its size as view box and grows with it.
function screensOf(pictures) {
  const shape = (tag, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  };
  function source(name) {
    if (!Object.hasOwn(pictures, name)) return null;
    const held = pictures[name];
    return name.endsWith(".svg") ? "data:image/svg+xml," + encodeURIComponent(held) : "data:image/png;base64," + held;
  }
  function arrow([x1, y1], [x2, y2], unit) {
    const angle = Math.atan2(y2 - y1, x2 - x1);
    const wing = (turn) => (x2 - 1.4 * unit * Math.cos(angle + turn)) + "," + (y2 - 1.4 * unit * Math.sin(angle + turn));
    return [shape("line", { x1, y1, x2, y2 }), shape("polyline", { points: [wing(0.5), x2 + "," + y2, wing(-0.5)].join(" ") })];
  }
  function shapesOf(mark, unit) {
    const drawn = [];
    if (mark.box) {
      const [x1, y1, x2, y2] = mark.box;
      drawn.push(shape("rect", { x: x1, y: y1, width: Math.max(0, x2 - x1), height: Math.max(0, y2 - y1), rx: unit / 5 }));
    }
    if (mark.at && mark.to) drawn.push(...arrow(mark.at, mark.to, unit));
    if (mark.at) {
      const [cx, cy] = mark.at;
      drawn.push(shape("circle", { cx, cy, r: unit / 5, class: "dot" }));
      if (!mark.to) drawn.push(shape("circle", { cx, cy, r: unit }));
      if (mark.kind === "double_click") drawn.push(shape("circle", { cx, cy, r: 1.6 * unit }));
    }
    return drawn;
  }
  const whoOf = (mark) => (mark.expert ? "expert" : "policy") + (/^(hover|long_press)$/.test(mark.kind) ? " held" : "");
  function layer(scene) {
    const [width, height] = scene.size;
    const unit = Math.max(width, height) / 48;
    const node = shape("svg", { viewBox: "0 0 " + width + " " + height, "aria-hidden": "true" });
    for (const mark of scene.marks) {
      const group = shape("g", { class: whoOf(mark) });
      group.append(...shapesOf(mark, unit));
      node.append(group);
    }
    return node;
  }
  // Beside the place that it is about, away from an arrow and from the other's words, and within the screen in any case.
  function label(mark, [width, height]) {
    const node = el("span", "label " + whoOf(mark), mark.label);
    const percent = (share) => 100 * Math.min(1, Math.max(0, share));
    const x = percent(mark.at ? mark.at[0] / width : 0.5);
    node.style.left = x + "%";
    node.style.transform = "translateX(-" + x + "%)";
    if (!mark.at) {
      node.style.bottom = mark.expert ? "34px" : "8px";
      return node;
    }
    const [high, low] = mark.box && !mark.to ? [mark.box[1], mark.box[3]] : [mark.at[1] - height / 25, mark.at[1] + height / 25];
    const room = { above: high / height > 0.08, below: low / height < 0.9 };
    const above = mark.to ? mark.to[1] > mark.at[1] : mark.expert;
    if (room.above && (above || !room.below)) node.style.bottom = percent(1 - high / height) + 1 + "%";
    else node.style.top = Math.min(90, percent(low / height) + 1) + "%";
    return node;
  }
  // The screen of a turn; with its words where there is room for them, the expert's only where the policy did otherwise.
  function screen(scene, words, missed) {
    const shown = source(scene.picture);
    const node = el("div", "screen", shown ? el("img") : el("span", "meta", "This picture is not on the page."));
    if (shown) Object.assign(node.firstChild, { src: shown, alt: scene.marks.map((mark) => mark.label).filter(Boolean).join("; ") });
    if (!scene.size) return node;
    node.style.setProperty("--ratio", scene.size[0] / scene.size[1]);
    node.append(layer(scene));
    const told = scene.marks.filter((mark) => words && mark.label && (!mark.expert || missed));
    node.append(...told.map((mark) => label(mark, scene.size)));
    return node;
  }
  return screen;
}
