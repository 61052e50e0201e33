// Runs in every document before the page's own scripts: a clock that only we move, seeded randomness, dialogs that
// answer themselves, and notes of what the page tried. SITE is replaced by the site's settings.
(() => {
  "use strict";
  const SITE = /*SITE*/ {navigates: true, begin: () => {}} /*SITE*/;
  const START_MS = Date.UTC(2024, 0, 2, 12);
  const FRAME_MS = 16; // of the virtual screen
  const QUIET_MS = 1000; // a timeout further away than this does not hold up the end of a turn
  const FAST_MS = 100; // an interval this short does
  const MAX_DIALOGS = 20; // a turn
  const MAX_WAITS = 200; // of ten milliseconds, for the answers to requests
  const MAX_NOTES = 20; // a turn
  const realFrame = window.requestAnimationFrame.bind(window);
  const realTimeout = window.setTimeout.bind(window);
  const RealDate = Date;
  const laidOut = Element.prototype.getBoundingClientRect;
  const report = window.agentenvReport;
  delete window.agentenvReport;

  let now = 0, order = 0, dialogs = 0, leaving = false, loaded = false, notes = [];
  const timers = new Map();
  const note = (kind, text) => { if (notes.length < MAX_NOTES) notes.push([kind, String(text).slice(0, 200)]); };
  const replace = (owner, name, value) => Object.defineProperty(owner, name, {value, writable: true, configurable: true});

  // Randomness: mulberry32, a full-period generator of 32 bits.
  let word = 0;
  const random = () => {
    word = (word + 0x6D2B79F5) | 0;
    let t = Math.imul(word ^ (word >>> 15), 1 | word);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  replace(Math, "random", random);
  replace(Crypto.prototype, "getRandomValues", array => {
    const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
    for (let i = 0; i < bytes.length; i++) bytes[i] = random() * 256;
    return array;
  });
  replace(Crypto.prototype, "randomUUID", () =>
    "10000000-1000-4000-8000-100000000000".replace(/[018]/g, digit => (digit ^ (random() * 16 >> digit / 4)).toString(16)));

  // Clock.
  function VirtualDate(...given) {
    if (!new.target) return new RealDate(START_MS + now).toString();
    return Reflect.construct(RealDate, given.length ? given : [START_MS + now], new.target);
  }
  VirtualDate.prototype = RealDate.prototype;
  VirtualDate.prototype.constructor = VirtualDate;
  Object.assign(VirtualDate, {now: () => START_MS + now});
  for (const name of ["parse", "UTC"]) replace(VirtualDate, name, RealDate[name]);
  replace(window, "Date", VirtualDate);
  replace(Performance.prototype, "now", () => now);
  Object.defineProperty(Performance.prototype, "timeOrigin", {get: () => START_MS, configurable: true});
  Object.defineProperty(Event.prototype, "timeStamp", {get: () => now, configurable: true});

  const add = (call, delay, every) => {
    const wait = Math.max(1, Number(delay) || 0);
    timers.set(++order, {id: order, at: now + wait, every: every ? wait : 0, call});
    return order;
  };
  const calling = (handler, given) => () => typeof handler === "function" ? handler.apply(window, given) : (0, eval)(handler);
  const cancel = id => { timers.delete(id); };
  replace(window, "setTimeout", (handler, delay, ...given) => add(calling(handler, given), delay, false));
  replace(window, "setInterval", (handler, delay, ...given) => add(calling(handler, given), delay, true));
  replace(window, "requestAnimationFrame", handler =>
    add(() => handler(now), FRAME_MS - now % FRAME_MS, false));
  replace(window, "requestIdleCallback", handler =>
    add(() => handler({didTimeout: false, timeRemaining: () => FRAME_MS}), 1, false));
  for (const name of ["clearTimeout", "clearInterval", "cancelAnimationFrame", "cancelIdleCallback"]) replace(window, name, cancel);

  // What the page says and tries.
  window.addEventListener("error", event => { if (event.message) note("error", event.message); });
  window.addEventListener("unhandledrejection", event => note("error", event.reason));
  const dialog = (kind, text) => {
    note(kind, text === undefined ? "" : text);
    if (++dialogs > MAX_DIALOGS) throw new Error(`more than ${MAX_DIALOGS} dialogs in one turn`);
  };
  replace(window, "alert", text => dialog("alert", text));
  replace(window, "confirm", text => { dialog("confirm", text); return true; });
  replace(window, "prompt", (text, initial) => { dialog("prompt", text); return initial === undefined ? "" : String(initial); });
  for (const name of ["print", "close"]) replace(window, name, () => {});
  replace(window, "open", url => { note("popup", url); return null; });
  window.addEventListener("click", event => {
    const link = event.target instanceof Element && event.target.closest("a[target]");
    if (!link || event.defaultPrevented || ["", "_self", "_top", "_parent"].includes(link.target)) return;
    note("popup", link.href);
    event.preventDefault();
  });
  window.navigation.addEventListener("navigate", event => {
    if (event.destination.sameDocument) return;
    const inside = new URL(event.destination.url).origin === location.origin;
    if (SITE.navigates && inside && event.downloadRequest === null) { leaving = true; return; }
    note("navigation", event.destination.url);
    event.preventDefault();
  });

  // A turn: handlers of the real events first, then virtual time until nothing is about to happen.
  const frame = () => new Promise(done => { realFrame(() => realTimeout(done)); realTimeout(done, 100); });
  const channel = new MessageChannel();
  const task = () => new Promise(done => { channel.port1.onmessage = done; channel.port2.postMessage(0); });
  const holds = timer => timer.every ? timer.every <= FAST_MS : timer.at - now <= QUIET_MS;
  const earliest = () => {
    let first = null;
    for (const timer of timers.values()) if (!first || timer.at < first.at || (timer.at === first.at && timer.id < first.id)) first = timer;
    return first;
  };
  const fire = timer => {
    now = Math.max(now, timer.at);
    if (timer.every) timer.at = now + timer.every; else timers.delete(timer.id);
    try { timer.call(); } catch (error) { note("error", error); }
  };
  // What the page asked for, until the whole answer is there: the browser tells of a request later than of the script.
  let asked = 0;
  const realFetch = window.fetch.bind(window);
  replace(window, "fetch", (...given) => {
    const done = () => realTimeout(() => { asked--; });
    asked++;
    const answer = realFetch(...given);
    answer.then(found => found.clone().arrayBuffer()).then(done, done);
    return answer;
  });
  const answers = async () => {
    for (let wait = 0; asked && !leaving && wait < MAX_WAITS; wait++) await new Promise(done => realTimeout(done, 10));
  };
  const settle = async (least, most) => {
    const anew = loaded && document.readyState === "loading"; // by document.write, and open for what the page writes later
    if (!anew && document.readyState !== "complete") await new Promise(done => window.addEventListener("load", done, {once: true}));
    loaded = true;
    await frame();
    await answers();
    const floor = now + least, end = now + Math.max(least, most);
    for (let next = earliest(); next && next.at <= end && !leaving; next = earliest()) {
      if (next.at > floor && ![...timers.values()].some(timer => timer.at <= end && holds(timer))) break;
      fire(next);
      await task();
    }
    now = Math.max(now, floor);
    // Styles that have changed ask for pictures and fonts only once they are computed.
    if (document.documentElement) laidOut.call(document.documentElement);
    const seen = {notes, leaving, looping: dialogs > MAX_DIALOGS};
    [notes, leaving, dialogs] = [[], false, 0];
    return seen;
  };
  const seeded = seed => { word = seed | 0; };
  const begin = seed => { seeded(seed); notes = []; SITE.begin(report); };
  Object.defineProperty(window, "agentenv", {value: Object.freeze({settle, begin, seeded})});

  const still = "*, *::before, *::after {animation: none !important; transition: none !important; caret-color: transparent !important; scroll-behavior: auto !important}";
  document.addEventListener("DOMContentLoaded", () => {
    const sheet = document.createElement("style");
    sheet.textContent = still + (SITE.style || "");
    document.head.append(sheet);
  });
})();
