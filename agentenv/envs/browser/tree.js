// Runs in a world of its own, which shares the document with the page and none of its objects: what there is to see, and
// where an element is. IGNORED is replaced by a selector of what is not shown.
(() => {
  "use strict";
  const IGNORED = /*IGNORED*/ "" /*IGNORED*/;
  const MAX_ELEMENTS = 400;
  const MAX_TEXT = 200;
  const MAX_VALUE = 2000; // of what a field holds
  const MAX_GOAL = 20000;
  const MAX_FACT = 1000000; // characters of a text that a validator learns
  let numbers = new WeakMap();
  const known = new Map();
  let last = 0;

  const ROLES = {
    A: "link", BUTTON: "button", TEXTAREA: "textbox", SELECT: "combobox", OPTION: "option", IMG: "img", LABEL: "label",
    H1: "heading", H2: "heading", H3: "heading", H4: "heading", LI: "listitem", TD: "cell", TH: "columnheader", CANVAS: "img",
    svg: "img",
  };
  const INPUTS = {
    checkbox: "checkbox", radio: "radio", button: "button", submit: "button", reset: "button", image: "button",
    range: "slider", number: "spinbutton", search: "searchbox",
  };
  const WHOLE = new Set(["button", "link", "checkbox", "radio", "textbox", "searchbox", "spinbutton", "slider", "option", "tab", "menuitem"]);
  const NAMED = new Set([...WHOLE, "combobox", "graphic", "img"]);
  const SHAPES = new Set(["circle", "ellipse", "rect", "polygon", "polyline", "line", "path"]);
  const COLOURS = {
    "0,0,0": "black", "255,255,255": "white", "255,0,0": "red", "0,128,0": "green", "0,255,0": "lime", "0,0,255": "blue",
    "255,255,0": "yellow", "255,165,0": "orange", "128,0,128": "purple", "255,192,203": "pink", "0,255,255": "aqua",
    "255,0,255": "magenta", "128,128,128": "grey", "165,42,42": "brown",
  };

  // The fields of a form are properties of it, by their names, and hide its own ones: a field may be called "children".
  const its = (element, name) =>
    element instanceof HTMLFormElement ? Reflect.get(HTMLFormElement.prototype, name, element) : element[name];
  const ask = (element, name, ...given) => its(element, name).call(element, ...given);

  const numbered = element => {
    if (!numbers.has(element)) { numbers.set(element, String(++last)); known.set(String(last), new WeakRef(element)); }
    return numbers.get(element);
  };
  const tidy = (text, room = MAX_TEXT) => (text || "").replace(/\s+/g, " ").trim().slice(0, room);
  const ownText = element => tidy([...its(element, "childNodes")].filter(node => node.nodeType === Node.TEXT_NODE).map(node => node.data).join(" "));
  const givenRole = element => {
    const role = tidy(ask(element, "getAttribute", "role"));
    return role === "presentation" || role === "none" ? "" : role;
  };
  const roleOf = element => givenRole(element) ||
    (element.tagName === "INPUT" ? INPUTS[element.type] || "textbox" : ROLES[its(element, "tagName")]) ||
    (its(element, "isContentEditable") && !its(element.parentElement, "isContentEditable") ? "textbox" : "") ||
    (SHAPES.has(its(element, "tagName")) ? "graphic" : "");

  const colour = value => {
    const parts = /rgba?\((\d+), (\d+), (\d+)(?:, ([\d.]+))?\)/.exec(value);
    if (!parts || parts[4] === "0") return "";
    const plain = parts.slice(1, 4).join(",");
    return COLOURS[plain] || `rgb(${plain})`;
  };
  // The part of an element's box that can be seen: inside the window and every scrolled box around it.
  const seenBox = element => {
    const rect = ask(element, "getBoundingClientRect");
    const box = [Math.max(rect.left, 0), Math.max(rect.top, 0), Math.min(rect.right, innerWidth), Math.min(rect.bottom, innerHeight)];
    for (let parent = its(element, "parentElement"); parent && parent !== document.body; parent = its(parent, "parentElement")) {
      if (getComputedStyle(parent).overflow === "visible" || parent instanceof SVGElement) continue;
      const around = ask(parent, "getBoundingClientRect");
      box[0] = Math.max(box[0], around.left); box[1] = Math.max(box[1], around.top);
      box[2] = Math.min(box[2], around.right); box[3] = Math.min(box[3], around.bottom);
    }
    return box[2] - box[0] >= 1 && box[3] - box[1] >= 1 ? box : null;
  };
  const nameOf = (element, role, style) => {
    const given = ["aria-label", "alt", "title"].map(name => ask(element, "getAttribute", name)).find(Boolean);
    if (given) return tidy(given);
    if (element.tagName === "INPUT" && role === "button") return tidy(element.value);
    const labels = its(element, "labels");
    if (labels && labels.length) return tidy([...labels].map(label => label.innerText).join(" "));
    if (role === "textbox" || role === "searchbox" || role === "combobox" || role === "spinbutton")
      return tidy(ask(element, "getAttribute", "placeholder") || its(element, "name") || its(element, "id"));
    if (role === "graphic" || role === "img") return drawn(element, style);
    return WHOLE.has(role) ? tidy(its(element, "innerText") || its(element, "textContent")) || drawn(element, style) : ownText(element);
  };
  const drawn = (element, style) => {
    const svg = element instanceof SVGElement;
    const classes = String(svg ? element.getAttribute("class") || "" : its(element, "className"));
    const kind = SHAPES.has(element.tagName) ? element.tagName : "";
    const source = element.tagName === "IMG" ? element.getAttribute("src").slice(-40).split("/").pop() : "";
    return tidy([kind, its(element, "id"), classes, source, colour(svg ? style.fill : style.backgroundColor)].filter(Boolean).join(" "));
  };
  const valueOf = (element, role) => {
    if (element.tagName === "SELECT") return tidy([...element.selectedOptions].map(option => option.text).join(", "));
    if (role === "checkbox" || role === "radio" || role === "button") return "";
    const value = its(element, "value");
    if (role === "textbox" && value === undefined) return tidy(its(element, "innerText"));
    return tidy(value === undefined || element.tagName === "LI" ? ask(element, "getAttribute", "aria-valuenow") : String(value), MAX_VALUE);
  };
  const says = (element, attribute) => ask(element, "getAttribute", attribute) === "true";
  const statesOf = element => [
    (its(element, "checked") || says(element, "aria-checked")) && "checked",
    (its(element, "selected") || says(element, "aria-selected")) && "selected",
    says(element, "aria-expanded") && "expanded",
    document.activeElement === element && "focused",
    (its(element, "disabled") || says(element, "aria-disabled")) && "disabled",
  ].filter(Boolean);
  const isDrawn = style => colour(style.backgroundColor) || style.backgroundImage !== "none" ||
    style.borderTopStyle !== "none" || style.cursor === "pointer";

  const row = (element, role, style, box) =>
    [numbered(element), role, nameOf(element, role, style), box.map(Math.round), valueOf(element, role), statesOf(element)];
  const visit = (element, rows) => {
    if (rows.length >= MAX_ELEMENTS || ["SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE"].includes(element.tagName)) return;
    if (IGNORED && ask(element, "matches", IGNORED)) return;
    const style = getComputedStyle(element);
    if (style.display === "none") return;
    const box = style.visibility === "hidden" || style.opacity === "0" ? null : seenBox(element);
    const own = ownText(element);
    const role = roleOf(element) || (own ? "text" : "");
    const told = !(role === "label" && element.control) && (NAMED.has(role) || own);
    if (box && role && told) rows.push(row(element, role, style, box));
    if (role === "combobox" && box && its(element, "options"))
      for (const option of [...element.options].slice(0, 100)) rows.push([numbered(option), "option", tidy(option.text), box.map(Math.round), "", statesOf(option)]);
    if (role === "combobox" || (WHOLE.has(role) && !ask(element, "querySelector", "[role=menuitem], input, button"))) return;
    const before = rows.length;
    for (const child of its(element, "children")) visit(child, rows);
    if (box && !role && rows.length === before && isDrawn(style) && !its(element, "innerText").trim()) rows.push(row(element, "graphic", style, box));
  };

  const found = id => {
    const element = known.has(id) ? known.get(id).deref() : undefined;
    return element && element.isConnected ? element : null;
  };
  const goalOf = selector => { const element = selector && document.querySelector(selector); return element ? tidy(its(element, "textContent"), MAX_GOAL) : ""; };
  const look = goal => {
    const rows = [];
    if (document.body) visit(document.body, rows);
    return {rows, goal: goalOf(goal), title: tidy(document.title), width: innerWidth, height: innerHeight};
  };
  const rehearse = () => { look(""); numbers = new WeakMap(); known.clear(); last = 0; };
  // The point nearest to the middle of a box at which a click meets the element and nothing that lies over it; the middle
  // where there is none.
  const topmost = Document.prototype.elementFromPoint;
  const SHARES = [0.5, 0.3, 0.7, 0.1, 0.9];
  const pointOf = (element, box) => {
    const points = SHARES.flatMap(x => SHARES.map(y => [box[0] + x * (box[2] - box[0]), box[1] + y * (box[3] - box[1])]));
    const off = ([x, y]) => Math.hypot(x - (box[0] + box[2]) / 2, y - (box[1] + box[3]) / 2);
    points.sort((one, other) => off(one) - off(other));
    return points.find(point => ask(element, "contains", topmost.apply(document, point))) || points[0];
  };
  const place = id => {
    const element = found(id);
    if (!element) return null;
    if (!seenBox(element)) ask(element, "scrollIntoView", {block: "center", inline: "center", behavior: "instant"});
    const lines = ask(element, "getClientRects");
    const box = lines.length > 1 ? [lines[0].left, lines[0].top, lines[0].right, lines[0].bottom] : seenBox(element);
    return box && pointOf(element, box);
  };
  const focus = id => {
    const element = found(id);
    if (!element) return false;
    ask(element, "focus");
    if (its(element, "isContentEditable")) getSelection().selectAllChildren(element), getSelection().collapseToEnd();
    else if (its(element, "setSelectionRange") && /^(text|search|url|tel|password|textarea)$/.test(element.type))
      element.setSelectionRange(element.value.length, element.value.length);
    return true;
  };
  const choose = (id, at, text) => {
    const element = id ? found(id) : document.elementFromPoint(...at);
    const list = element && ask(element, "closest", "select");
    if (!list) return "This is no drop-down list.";
    const option = [...list.options].find(one => tidy(one.text) === tidy(text));
    if (!option) return `The list has no option ${JSON.stringify(text)}.`;
    list.focus();
    option.selected = true;
    for (const kind of ["input", "change"]) list.dispatchEvent(new Event(kind, {bubbles: true}));
    return "";
  };
  const scroll = (id, at, dx, dy) => {
    let element = id ? found(id) : document.elementFromPoint(...at);
    const moves = one => dy ? its(one, "scrollHeight") > its(one, "clientHeight") : its(one, "scrollWidth") > its(one, "clientWidth");
    const rolls = one => one === document.scrollingElement || one.tagName === "TEXTAREA" || one.tagName === "SELECT" || /auto|scroll/.test(getComputedStyle(one).overflow);
    while (element && !(moves(element) && rolls(element))) element = its(element, "parentElement");
    if (!element) return "Nothing scrolls here.";
    ask(element, "scrollBy", {left: dx * its(element, "clientWidth"), top: dy * its(element, "clientHeight"), behavior: "instant"});
    return "";
  };
  const stored = () => { try { return {...localStorage}; } catch { return {}; } };  // a document without an origin has none
  const cut = text => text.slice(0, MAX_FACT);
  const facts = () => ({
    url: cut(location.href), title: cut(document.title), text: document.body ? cut(document.body.innerText) : "",
    fields: Object.fromEntries([...document.querySelectorAll("input, textarea, select")].filter(field => field.name || field.id)
      .map(field => [field.name || field.id, /^(checkbox|radio)$/.test(field.type) ? field.checked : cut(String(field.value))])),
    storage: stored(),
  });
  globalThis.agentenvPage = {look, rehearse, place, focus, choose, scroll, facts};
})();
