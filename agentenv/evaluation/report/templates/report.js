"use strict";
// All text of a run goes through el(), which makes text nodes: nothing in it can become markup.
function el(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}
const fixed = (value) => (typeof value === "number" ? String(Math.round(value * 1000) / 1000) : "");

for (const chart of document.querySelectorAll("svg[data-points]")) {
  const points = JSON.parse(chart.dataset.points);
  const readout = chart.closest("figure").querySelector(".readout");
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  cursor.setAttribute("class", "cursor");
  cursor.setAttribute("r", "3.5");
  chart.addEventListener("mousemove", (event) => {
    const x = ((event.clientX - chart.getBoundingClientRect().left) / chart.clientWidth) * chart.viewBox.baseVal.width;
    const near = points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
    cursor.setAttribute("cx", near[0]);
    cursor.setAttribute("cy", near[1]);
    chart.append(cursor);
    readout.textContent = "step " + near[2] + ": " + near[3];
  });
  chart.addEventListener("mouseleave", () => { cursor.remove(); readout.textContent = readout.dataset.last; });
}

const ROWS = 500; // of the list at a time: a browser lays out thousands slowly
const THUMBNAILS = 60; // of the gallery
const PLAY_MS = 1200; // a turn, while an episode is played by itself

function viewer(data) {
  const by = (id) => document.getElementById(id);
  const { episodes, labels, unit, pictures } = data;
  const screen = screensOf(pictures);
  const paired = labels.length > 1;
  const verdict = (run) => (run ? run.cause : "absent");
  const words = {
    correct: "correct", retrieval_miss: "retrieval miss", read_miss: "read miss", format: "format error",
    gave_up: "gave up", unsolved: "not solved", fault: "fault", absent: "not run",
  };
  const sign = (cause) => (cause === "correct" ? "\u2713" : cause === "fault" ? "!" : cause === "absent" ? " " : "\u2717");
  const tone = (cause) => (cause === "correct" || cause === "fault" ? cause : "wrong");
  for (const e of episodes) {
    e.verdicts = e.runs.map(verdict);
    e.verdict = e.verdicts[e.verdicts.length - 1];
    e.ends = e.runs.filter(Boolean).map((run) => run.end);
  }
  const outcomes = {
    "": "all outcomes", correct: "correct", wrong: "not correct",
    retrieval_miss: "retrieval miss", read_miss: "read miss", format: "format error", gave_up: "gave up", unsolved: "not solved", fault: "fault",
    ...(paired ? { gained: "not correct in " + labels[0] + ", correct in " + labels[1],
      lost: "correct in " + labels[0] + ", not in " + labels[1] } : {}),
  };
  const hasOutcome = (e, wanted) =>
    wanted === "gained" ? e.verdicts[0] !== "correct" && e.verdict === "correct"
    : wanted === "lost" ? e.verdicts[0] === "correct" && e.verdict !== "correct"
    : wanted === "wrong" ? e.verdict !== "correct" && e.verdict !== "fault"
    : e.verdict === wanted;

  function fill(id, options) {
    for (const [value, label] of options) {
      const count = episodes.filter((e) => value === "" || matches[id](e, value)).length;
      if (!count) continue;
      const option = el("option", "", value === "" ? label : label + " (" + count + ")");
      option.value = value;
      by(id).append(option);
    }
    by(id).hidden = options.length < 3;
    by(id).addEventListener("change", update);
  }
  const matches = {
    set: (e, value) => e.set === value,
    outcome: hasOutcome,
    family: (e, value) => String(e.family) === value,
    hops: (e, value) => String(e.hops) === value,
    end: (e, value) => e.ends[e.ends.length - 1] === value,
  };
  const distinct = (values) => [...new Set(values.filter((v) => v !== null && v !== undefined).map(String))].sort();
  const named = (id, all, values, label = (v) => v) =>
    fill(id, [["", all], ...distinct(values).map((v) => [v, label(v)])]);

  let shown = [];
  let open = null;
  let turn = 0; // index of the turn that is stepped to
  let playing = null; // timer of an episode that is played by itself
  function hay(e) {
    e.hay ??= JSON.stringify([e.id, e.question, e.answers, e.runs.map((r) => r && [r.prediction, r.turns])]).toLowerCase();
    return e.hay;
  }
  function update() {
    const text = JSON.stringify(by("text").value.trim().toLowerCase()).slice(1, -1);
    shown = episodes.filter((e) =>
      Object.keys(matches).every((id) => by(id).value === "" || matches[id](e, by(id).value)) &&
      (text === "" || hay(e).includes(text)));
    const more = shown.length - ROWS;
    by("list").replaceChildren(...shown.slice(0, ROWS).map(row),
      ...(more > 0 ? [el("li", "more", more + " more: narrow the search")] : []));
    by("count").textContent = shown.length + " of " + episodes.length;
    gallery();
    show(shown.includes(open) ? open : shown[0] || null);
  }
  function row(e) {
    const signsOf = e.verdicts.map((v) => Object.assign(el("span", tone(v), sign(v) + " "), { role: "img", ariaLabel: words[v], title: words[v] }));
    e.row = el("li", "", el("span", "q", e.question),
      el("span", "m", el("span", "", e.id), e.set && el("span", "", e.set), e.family && el("span", "", e.family),
        e.hops && el("span", "", e.hops + (e.hops === 1 ? " hop" : " hops")), el("span", "verdicts", signsOf)));
    Object.assign(e.row, { id: "episode-" + episodes.indexOf(e), role: "option", ariaSelected: "false" });
    e.row.addEventListener("click", () => show(e));
    return e.row;
  }
  // The last screen of each episode of the list, with the last action on it.
  function gallery() {
    const seen = shown.filter(lastOf);
    const more = seen.length - THUMBNAILS;
    by("gallery").hidden = !seen.length;
    by("gallery").replaceChildren(...seen.slice(0, THUMBNAILS).map(card), ...(more > 0 ? [el("li", "more", more + " more: narrow the search")] : []));
  }
  const lastOf = (e) => e.runs.filter(Boolean).at(-1).turns.findLast((one) => one.scene);
  const summary = (e) => [(e.ends.at(-1) || "").replaceAll("_", " "),
    ...lastOf(e).scene.marks.filter((mark) => !mark.expert).map((mark) => mark.label)].join(" \u00b7 ");
  function card(e) {
    const button = el("button", "", screen(lastOf(e).scene),
      el("span", "q", el("span", tone(e.verdict), sign(e.verdict) + " "), e.question || e.id), el("span", "meta", summary(e)));
    button.type = "button";
    button.addEventListener("click", () => {
      show(e, true);
      step(Infinity, false);
      document.querySelector(".panes").scrollIntoView({ block: "nearest" });
    });
    return el("li", "", button);
  }
  function show(e, scroll) {
    stop();
    if (open && open.row) { open.row.classList.remove("open"); open.row.ariaSelected = "false"; }
    open = e;
    turn = 0;
    if (!e) return by("detail").replaceChildren(el("p", "meta", "No episode matches these filters."));
    if (e.row && e.row.isConnected) {
      e.row.classList.add("open");
      e.row.ariaSelected = "true";
      by("list").setAttribute("aria-activedescendant", e.row.id);
    }
    if (scroll && e.row) e.row.scrollIntoView({ block: "nearest" });
    by("detail").replaceChildren(
      el("h3", "", e.question || e.id),
      e.answers.some(Boolean) ? el("p", "meta", "Accepted: " + e.answers.join(" \u00b7 ")) : "",
      e.supporting.length ? el("p", "meta", "Supporting documents: " + e.supporting.join(", ")) : "",
      stepper(e.runs.some((run) => run && lastOf({ runs: [run] }))),
      el("div", "sides", e.runs.map((run, i) => run && side(e, run, labels[i], e.verdicts[i]))));
    by("detail").scrollTop = 0;
    step(0, false);
    history.replaceState(null, "", "#" + encodeURIComponent(e.id));
  }
  function stepper(plays) {
    const button = (id, label, act) => {
      const node = el("button", "", label);
      node.id = id;
      node.type = "button";
      node.addEventListener("click", act);
      return node;
    };
    const place = el("span", "meta", "");
    place.id = "place";
    return el("p", "stepper", button("previous", "\u2190 turn", () => step(-1, true)), place,
      button("next", "turn \u2192", () => step(1, true)), plays && button("play", "\u25b6 play", play) || null);
  }
  function step(by, scroll) {
    const nodes = [...document.querySelectorAll("#detail [data-turn]")];
    const last = Math.max(0, ...nodes.map((node) => Number(node.dataset.turn)));
    turn = Math.min(last, Math.max(0, turn + by));
    document.getElementById("place").textContent = nodes.length ? "turn " + (turn + 1) + " of " + (last + 1) : "no turns";
    document.getElementById("previous").disabled = turn === 0;
    document.getElementById("next").disabled = turn === last;
    const current = nodes.filter((node) => node.classList.toggle("current", Number(node.dataset.turn) === turnFor(node)));
    const first = current.find((node) => node.matches(".side:not(.replay) .turn"));
    if (scroll && first) first.scrollIntoView({ block: "nearest" });
    if (turn === last) stop();
  }
  // Of two episodes side by side the shorter one stays at its last screen.
  function turnFor(node) {
    const side = node.closest(".replay");
    return side ? Math.min(turn, Number(side.dataset.last)) : turn;
  }
  function play() {
    if (playing) return stop();
    if (document.getElementById("next").disabled) step(-Infinity, false);
    document.getElementById("play").textContent = "\u23f8 pause";
    playing = setInterval(() => step(1, false), PLAY_MS);
  }
  function stop() {
    clearInterval(playing);
    playing = null;
    const button = document.getElementById("play");
    if (button) button.textContent = "\u25b6 play";
  }
  function side(e, run, label, outcome) {
    const found = new Set(run.retrieved.flat());
    const tokens = run.tokens || {};
    const asked = e.scorer !== "reward" || run.prediction !== null;
    const facts = [run.end.replaceAll("_", " "), ...(asked && run.searches !== null ? [run.searches + (run.searches === 1 ? " search" : " searches")] : []),
      ...(e.scorer === "reward" || !run.valid ? [] : [e.scorer + " " + fixed(run.score)]),
      ...(run.valid ? ["reward " + fixed(run.reward)] : [])];
    if (e.supporting.length && run.searches !== null)
      facts.push(e.supporting.filter((id) => found.has(id)).length + " of " + e.supporting.length + " supporting documents found");
    if (tokens.total) facts.push(tokens.policy + " " + unit + " written, " + tokens.total + " in all");
    const seen = run.turns.some((one) => one.scene);
    const node = el("div", seen ? "side replay" : "side",
      el("h4", "", label, el("span", "verdict " + tone(outcome), sign(outcome) + " " + words[outcome])),
      asked ? el("p", "meta", "Answer: " + (run.prediction === null ? "none" : run.prediction)) : null,
      el("p", "meta", facts.join(" \u00b7 ")),
      run.error && el("details", "", el("summary", "bad", "What failed"), el("pre", "block", run.error)),
      run.prompt && el("details", "", el("summary", "meta", "Prompt"), el("pre", "block", run.prompt)),
      run.turns.map((one, i) => turnOf(one, i, e, seen)),
      seen ? el("div", "strip", run.turns.map(thumbnail)) : null);
    node.dataset.last = run.turns.length - 1;
    return node;
  }
  function thumbnail(one, i) {
    const node = el("button", one.valid === false ? "thumb bad" : "thumb", one.scene ? screen(one.scene) : "", el("span", "", i + 1));
    node.type = "button";
    node.dataset.turn = i;
    node.addEventListener("click", () => { stop(); step(i - turn, false); });
    return node;
  }
  function turnOf(one, i, e, seen) {
    const tools = one.tool_results || [];
    const counted = "policy_tokens" in one ? one.policy_tokens + " " + unit + " written" + ("observation_tokens" in one ? ", " + one.observation_tokens + " shown" : "") : null;
    const observation = one.messages ? one.messages.join("\n\n") : one.observation;
    const shown = observation ? passages(observation.trim(), tools, e) : null;
    const said = el("div", "said",
      el("div", "bar", el("span", "", "Turn " + (i + 1)), one.valid === false && el("span", "bad", "invalid action") || null,
        el("span", "", "reward " + fixed(one.reward)), counted && el("span", "", counted),
        tools.map((t) => el("span", t.status === "ok" ? "" : "bad",
          t.name + ": " + t.status.replaceAll("_", " ") + (t.error_class ? " (" + t.error_class + ")" : "")))),
      block("policy", "policy", tagged(one.action || "")),
      shown && !seen ? block("", "observation", shown) : null,
      seen ? tools.filter((t) => t.text).map((t) => el("p", "meta told", t.text)) : null,
      tools.filter((t) => !seen && t.text && t.name !== "search" && !(one.observation || "").includes(t.text)).map((t) =>
        el("details", "", el("summary", "meta", "Result of " + t.name), el("pre", "block", marked(t.text, e.answers)))),
      shown && seen ? el("details", "", el("summary", "meta", "What the policy was told next"), el("pre", "block", shown)) : null);
    const node = el("div", "turn", one.scene ? screen(one.scene, true, one.valid === false) : null, said);
    node.dataset.turn = i;
    return node;
  }
  // An observation with its passages set apart; those that the question needs carry a mark.
  function passages(text, tools, e) {
    const ids = [...new Set(tools.flatMap((t) => (t.ids || []).flat()))];
    return text.split(/^(?=(?:.*<information>)?Doc \d+\(Title: )/m).map((part) => {
      const head = part.match(/^(?:.*<information>)?Doc (\d+)\(Title: /);
      if (!head) return el("span", "", marked(part, e.answers));
      const id = ids[Number(head[1]) - 1];
      const needed = id !== undefined && e.supporting.includes(id);
      return el("span", "passage" + (needed ? " needed" : ""),
        needed && el("span", "badge", "supporting") || null, marked(part, e.answers));
    });
  }
  const block = (kind, who, content) => el("div", "block " + kind, el("span", "who", who), el("pre", "", content));
  const tagged = (text) =>
    text.split(/(<\/?[a-z_]+>)/i).map((part, i) => (i % 2 ? el("span", "tag", part) : part));
  function marked(text, answers) {
    const golds = answers.map((a) => a.trim()).filter((a) => a.length > 1 && !/^(yes|no)$/i.test(a));
    golds.sort((a, b) => b.length - a.length); // the longest first, or a part of it would be marked alone
    if (!golds.length) return [text];
    const pattern = golds.map((a) => a.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&")).join("|");
    return text.split(new RegExp("(?<![\\p{L}\\p{N}])(" + pattern + ")(?![\\p{L}\\p{N}])", "giu")).map((part, i) => (i % 2 ? el("mark", "", part) : part));
  }

  named("set", "all sets", episodes.map((e) => e.set || null));
  fill("outcome", Object.entries(outcomes));
  named("family", "all families", episodes.map((e) => e.family));
  named("hops", "all hops", episodes.map((e) => e.hops), (v) => v + (v === "1" ? " hop" : " hops"));
  named("end", "all end reasons", episodes.flatMap((e) => e.ends), (v) => v.replaceAll("_", " "));
  by("text").addEventListener("input", update);
  document.addEventListener("keydown", (event) => {
    if (/INPUT|SELECT/.test(event.target.tagName) || event.metaKey || event.ctrlKey) return;
    if (event.key === "h" || event.key === "l") return open && step(event.key === "l" ? 1 : -1, true);
    const listed = by("list").contains(event.target);
    const move = event.key === "j" || (listed && event.key === "ArrowDown") ? 1
      : event.key === "k" || (listed && event.key === "ArrowUp") ? -1 : 0;
    const next = move && shown[shown.indexOf(open) + move];
    if (next) { event.preventDefault(); show(next, true); }
  });
  open = episodes.find((e) => e.id === linked()) || null;
  const atLink = open;
  update();
  if (atLink) { show(atLink, true); by("viewer").scrollIntoView(); }
}
// The id of the episode that the address names; nothing where it is no text.
function linked() {
  try { return decodeURIComponent(location.hash.slice(1)); } catch { return ""; }
}
function start() {
  const held = document.getElementById("data");
  if (held) viewer(JSON.parse(held.textContent));
}
