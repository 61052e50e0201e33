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

function viewer(data) {
  const by = (id) => document.getElementById(id);
  const { episodes, labels, scorer } = data;
  const paired = labels.length > 1;
  const verdict = (run) =>
    !run ? "absent" : !run.valid ? "fault" : run.score >= 1 ? "correct" : run.prediction === null ? "none" : "wrong";
  const words = { correct: "correct", wrong: "wrong", none: "no answer", fault: "fault", absent: "not run" };
  const signs = { correct: "\u2713", wrong: "\u2717", none: "\u2013", fault: "!", absent: " " };
  for (const e of episodes) {
    e.verdicts = e.runs.map(verdict);
    e.verdict = e.verdicts[e.verdicts.length - 1];
    e.ends = e.runs.filter(Boolean).map((run) => run.end);
  }
  const outcomes = {
    "": "all outcomes",
    correct: "correct", wrong: "wrong", none: "no answer", fault: "fault",
    ...(paired ? { gained: "wrong before, correct after", lost: "correct before, not after" } : {}),
  };
  const hasOutcome = (e, wanted) =>
    wanted === "gained" ? e.verdicts[0] !== "correct" && e.verdict === "correct"
    : wanted === "lost" ? e.verdicts[0] === "correct" && e.verdict !== "correct"
    : e.verdict === wanted;

  function fill(id, options) {
    for (const [value, label] of options) {
      const count = value === "" ? "" : " (" + episodes.filter((e) => matches[id](e, value)).length + ")";
      const option = el("option", "", label + count);
      option.value = value;
      by(id).append(option);
    }
    by(id).hidden = options.length < 3;
    by(id).addEventListener("change", update);
  }
  const matches = {
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
  function hay(e) {
    e.hay ??= JSON.stringify([e.id, e.question, e.answers, e.runs.map((r) => r && [r.prediction, r.turns])]).toLowerCase();
    return e.hay;
  }
  function update() {
    const text = JSON.stringify(by("text").value.trim().toLowerCase()).slice(1, -1);
    shown = episodes.filter((e) =>
      Object.keys(matches).every((id) => by(id).value === "" || matches[id](e, by(id).value)) &&
      (text === "" || hay(e).includes(text)));
    by("list").replaceChildren(...shown.map(row));
    by("count").textContent = shown.length + " of " + episodes.length;
    show(shown.includes(open) ? open : shown[0] || null);
  }
  function row(e) {
    const signsOf = e.verdicts.map((v) => el("span", v, signs[v] + " "));
    e.row = el("li", "", el("span", "q", e.question),
      el("span", "m", el("span", "", e.id), e.family && el("span", "", e.family),
        e.hops && el("span", "", e.hops + (e.hops === 1 ? " hop" : " hops")), el("span", "verdicts", signsOf)));
    e.row.addEventListener("click", () => show(e));
    return e.row;
  }
  function show(e, scroll) {
    if (open && open.row) open.row.classList.remove("open");
    open = e;
    if (!e) return by("detail").replaceChildren(el("p", "meta", "No episode matches these filters."));
    e.row.classList.add("open");
    if (scroll) e.row.scrollIntoView({ block: "nearest" });
    by("detail").replaceChildren(
      el("h3", "", e.question),
      el("p", "meta", "Accepted: " + e.answers.join(" \u00b7 ")),
      e.supporting.length ? el("p", "meta", "Supporting documents: " + e.supporting.join(", ")) : "",
      el("div", "sides", e.runs.map((run, i) => run && side(e, run, labels[i], e.verdicts[i]))));
    by("detail").scrollTop = 0;
    history.replaceState(null, "", "#" + encodeURIComponent(e.id));
  }
  function side(e, run, label, outcome) {
    const found = new Set(run.retrieved.flat());
    const facts = [run.end.replaceAll("_", " "), run.searches + (run.searches === 1 ? " search" : " searches"),
      scorer + " " + fixed(run.score), "reward " + fixed(run.reward)];
    if (e.supporting.length)
      facts.push(e.supporting.filter((id) => found.has(id)).length + " of " + e.supporting.length + " supporting documents found");
    return el("div", "side",
      el("h4", "", label, el("span", "verdict " + outcome, signs[outcome] + " " + words[outcome])),
      el("p", "meta", "Answer: " + (run.prediction === null ? "none" : run.prediction)),
      el("p", "meta", facts.join(" \u00b7 ")),
      run.prompt && el("details", "", el("summary", "meta", "Prompt"), el("pre", "block", run.prompt)),
      run.turns.map((turn, i) => turnOf(turn, i, e.answers)));
  }
  function turnOf(turn, i, answers) {
    const tools = turn.tool_results || [];
    return el("div", "turn",
      el("div", "bar", el("span", "", "Turn " + (i + 1)), turn.valid === false && el("span", "bad", "invalid action") || null,
        el("span", "", "reward " + fixed(turn.reward)),
        tools.map((t) => el("span", t.status === "ok" ? "" : "bad",
          t.name + ": " + t.status.replaceAll("_", " ") + (t.error_class ? " (" + t.error_class + ")" : "")))),
      block("policy", "policy", tagged(turn.action || "")),
      turn.observation ? block("", "observation", marked(turn.observation, answers)) : null,
      tools.filter((t) => t.text && !(turn.observation || "").includes(t.text)).map((t) =>
        el("details", "", el("summary", "meta", "Result of " + t.name), el("pre", "block", marked(t.text, answers)))));
  }
  const block = (kind, who, content) => el("div", "block " + kind, el("span", "who", who), el("pre", "", content));
  const tagged = (text) =>
    text.split(/(<\/?[a-z_]+>)/i).map((part, i) => (i % 2 ? el("span", "tag", part) : part));
  function marked(text, answers) {
    const golds = answers.filter((a) => a.trim().length > 1).sort((a, b) => b.length - a.length);
    if (!golds.length) return [text];
    const pattern = golds.map((a) => a.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|");
    return text.split(new RegExp("(" + pattern + ")", "gi")).map((part, i) => (i % 2 ? el("mark", "", part) : part));
  }

  fill("outcome", Object.entries(outcomes));
  named("family", "all families", episodes.map((e) => e.family));
  named("hops", "all hops", episodes.map((e) => e.hops), (v) => v + (v === "1" ? " hop" : " hops"));
  named("end", "all end reasons", episodes.flatMap((e) => e.ends), (v) => v.replaceAll("_", " "));
  by("text").addEventListener("input", update);
  document.addEventListener("keydown", (event) => {
    if (/INPUT|SELECT/.test(event.target.tagName) || event.metaKey || event.ctrlKey) return;
    const listed = by("list").contains(event.target);
    const step = event.key === "j" || (listed && event.key === "ArrowDown") ? 1
      : event.key === "k" || (listed && event.key === "ArrowUp") ? -1 : 0;
    const next = step && shown[shown.indexOf(open) + step];
    if (next) { event.preventDefault(); show(next, true); }
  });
  const linked = decodeURIComponent(location.hash.slice(1));
  open = episodes.find((e) => e.id === linked) || null;
  const atLink = open;
  update();
  if (atLink) { show(atLink, true); by("viewer").scrollIntoView(); }
}
const held = document.getElementById("data");
if (held) viewer(JSON.parse(held.textContent));
