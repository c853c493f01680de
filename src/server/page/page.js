"use strict";
const $ = id => document.getElementById(id);
const make = (tag, cls, text) => { const e = document.createElement(tag); if (cls) e.className = cls; if (text !== undefined) e.textContent = text; return e; };
const store = {
  get(key, other) { try { return JSON.parse(localStorage.getItem("sinter." + key)) ?? other; } catch { return other; } },
  set(key, value) { try { localStorage.setItem("sinter." + key, JSON.stringify(value)); return true; } catch { return false; /* full or off */ } },
};
const defaults = { system: "", temperature: 0.8, top_p: 0.95, top_k: 0, max_tokens: 256, seed: "", key: "", schema: "", probs: false };
let settings = { ...defaults, ...store.get("settings", {}) };
let talks = store.get("talks", []);
let now = talks[0] || null;
let model = { id: "", has_chat_template: true };
let running = null;  // AbortController of the answer that comes

// The browser keeps a few megabytes: where they are full probabilities go first, then the oldest conversations.
function save() {
  store.set("settings", settings);
  let kept = talks.slice(0, 100);
  if (store.set("talks", kept)) return;
  kept = kept.map(t => t === now ? t : { ...t, turns: t.turns.map(turn => ({ ...turn, tokens: [] })) });
  while (kept.length && !store.set("talks", kept)) kept = kept.slice(0, Math.floor(kept.length * .8));
}
function headers() { return { "Content-Type": "application/json", ...(settings.key ? { Authorization: "Bearer " + settings.key } : {}) }; }

// ---- conversations ----
function fresh() { now = { id: Date.now(), title: "New conversation", turns: [] }; show(); $("input").focus(); }
function showList() {
  $("list").replaceChildren(...talks.map(t => {
    const row = make("div", t === now ? "now" : ""), link = make("a", "", t.title), drop = make("button", "", "\u00d7");
    link.tabIndex = 0; link.onclick = () => { now = t; document.body.classList.remove("open"); show(); };
    link.onkeydown = e => { if (e.key === "Enter") link.onclick(); };
    drop.title = "Delete"; drop.onclick = () => { if (!confirm(`Delete "${t.title}"?`)) return; talks = talks.filter(x => x !== t); if (now === t) now = talks[0] || null; save(); show(); };
    row.append(link, drop); return row;
  }));
}
function show() {
  if (!now) now = { id: Date.now(), title: "New conversation", turns: [] };
  showList(); $("title").textContent = now.title;
  const talk = $("talk"); talk.replaceChildren();
  if (!now.turns.length) {
    const box = make("div", "empty");
    box.append(make("h2", "", model.has_chat_template ? "What shall we talk about?" : "Begin a text"),
      make("p", "", model.has_chat_template ? "Everything stays between this browser and your server." : "This model has no chat template: it continues what you write."));
    talk.append(box);
  }
  now.turns.forEach((turn, i) => talk.append(turnElement(turn, i)));
  talk.scrollTop = talk.scrollHeight;
}
function turnElement(turn, i) {
  const box = make("div", "turn " + turn.role), tools = make("div", "tools");
  box.append(make("div", "who", turn.role === "user" ? "You" : model.id || "Model"));
  if (turn.thought) box.append(make("div", "thought", turn.thought));
  const text = make("div", "text"); fill(text, turn); box.append(text);
  if (turn.error) box.append(make("div", "error", turn.error));
  const button = (label, action) => { const b = make("button", "", label); b.onclick = action; tools.append(b); };
  if (navigator.clipboard) button("Copy", async e => { await navigator.clipboard.writeText(turn.text); e.target.textContent = "Copied"; });
  if (turn.role === "user") button("Edit", () => edit(box, i));
  if (turn.role === "assistant" && i === now.turns.length - 1) button("Regenerate", () => { if (!running) { now.turns.pop(); answer(); } });
  box.append(tools); return box;
}
function fill(element, turn) {
  if (!settings.probs || !turn.tokens?.length) { element.textContent = turn.text; return; }
  element.replaceChildren(...turn.tokens.map(t => {
    const p = Math.exp(t.logprob), span = make("span", "token p" + (p < .05 ? 0 : p < .2 ? 1 : p < .5 ? 2 : p < .8 ? 3 : 4), t.token);
    span.onmouseenter = e => tip(e.target, t); span.onmouseleave = () => { $("tip").hidden = true; }; span.onclick = e => tip(e.target, t);
    return span;
  }));
}
function tip(target, t) {
  const box = $("tip"), rows = t.top.some(r => r.token === t.token) ? t.top : [...t.top, t];
  box.replaceChildren(...rows.map(r => {
    const row = make("div", r.token === t.token ? "chosen" : "");
    row.append(make("span", "", JSON.stringify(r.token)), make("span", "", (100 * Math.exp(r.logprob)).toFixed(1) + " %")); return row;
  }));
  box.hidden = false;
  const at = target.getBoundingClientRect();
  box.style.left = Math.max(8, Math.min(at.left, innerWidth - box.offsetWidth - 8)) + "px";
  box.style.top = (at.bottom + box.offsetHeight + 8 > innerHeight ? at.top - box.offsetHeight - 4 : at.bottom + 4) + "px";
}
function edit(box, i) {
  if (running) return;
  const area = make("textarea"), ok = make("button", "", "Send again"), no = make("button", "", "Cancel");
  area.value = now.turns[i].text; area.rows = 3;
  ok.onclick = () => { now.turns.length = i; ask(area.value); }; no.onclick = show;
  area.onkeydown = e => { if (e.key === "Enter" && !e.shiftKey) { e.preventDefault(); ok.onclick(); } if (e.key === "Escape") show(); };
  const row = make("div", "editing"); row.append(ok, no);
  box.replaceChildren(area, row); area.focus();
}

// ---- asking ----
function ask(text) {
  if (!text.trim() || running) return;
  if (!talks.includes(now)) talks.unshift(now);
  if (!now.turns.length) now.title = text.trim().slice(0, 60);
  now.turns.push({ role: "user", text }); save(); answer();
}
function request() {
  const body = { model: model.id, stream: true, stream_options: { include_usage: true }, temperature: +settings.temperature, top_p: +settings.top_p, top_k: +settings.top_k, max_tokens: +settings.max_tokens };
  if (settings.seed !== "") body.seed = +settings.seed;
  if (settings.schema.trim()) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(settings.schema) } };
  if (model.has_chat_template) {
    body.messages = [...(settings.system ? [{ role: "system", content: settings.system }] : []), ...now.turns.filter(t => !t.error || t.text).map(t => ({ role: t.role, content: t.text }))];
    if (settings.probs) { body.logprobs = true; body.top_logprobs = 5; }
    return ["v1/chat/completions", body];
  }
  body.prompt = settings.system + now.turns.map(t => t.text).join("");
  if (settings.probs) body.logprobs = 5;
  return ["v1/completions", body];
}
function take(turn, part) {
  const choice = part.choices?.[0]; if (!choice) return;
  const delta = choice.delta || {};
  turn.text += delta.content ?? choice.text ?? "";
  if (delta.reasoning_content) turn.thought = (turn.thought || "") + delta.reasoning_content;
  for (const call of delta.tool_calls || []) turn.text += (call.function?.name ? "\n" + call.function.name : "") + (call.function?.arguments || "");
  for (const t of choice.logprobs?.content || []) turn.tokens.push({ token: t.token, logprob: t.logprob, top: t.top_logprobs });
  const plain = choice.logprobs?.tokens;
  if (plain) plain.forEach((token, i) => turn.tokens.push({ token, logprob: choice.logprobs.token_logprobs[i] ?? 0, top: Object.entries(choice.logprobs.top_logprobs[i] || {}).map(([token, logprob]) => ({ token, logprob })) }));
}
async function answer() {
  const turn = { role: "assistant", text: "", tokens: [] }, talk = now;
  running = new AbortController(); $("stop").hidden = false; $("send").hidden = true;
  const begun = performance.now(); let first = 0, count = 0;
  try {
    const [path, body] = request();  // before the empty answer is a turn
    talk.turns.push(turn); show();
    const reply = await fetch(path, { method: "POST", headers: headers(), body: JSON.stringify(body), signal: running.signal });
    if (!reply.ok) throw new Error((await reply.json().catch(() => ({}))).error?.message || "HTTP " + reply.status);
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader(); let held = "";
    for (;;) {
      const { value, done } = await reader.read(); if (done) break;
      held += value; const events = held.split("\n\n"); held = events.pop();
      for (const event of events) {
        const data = event.split("\n").filter(l => l.startsWith("data: ")).map(l => l.slice(6)).join("");
        if (!data || data === "[DONE]") continue;
        const part = JSON.parse(data); if (part.error) throw new Error(part.error.message);
        take(turn, part); if (turn.text && !first) first = performance.now();
        if (part.usage) count = part.usage.completion_tokens;
      }
      if (now === talk) paint(talk.turns.length - 1, turn);
    }
    const seconds = (performance.now() - first) / 1000;
    if (count) $("rate").textContent = `First token after ${Math.round(first - begun)} ms, then ${(count / Math.max(seconds, .001)).toFixed(1)} tokens/s (${count} tokens).`;
  } catch (e) {
    if (!talk.turns.includes(turn)) talk.turns.push(turn);
    if (e.name !== "AbortError") turn.error = e instanceof SyntaxError ? "The JSON schema is not JSON: " + e.message : e.message;
  }
  running = null; $("stop").hidden = true; $("send").hidden = false; save(); if (now === talk) show();
}
function paint(i, turn) {
  const talk = $("talk"), isLow = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 80;
  const old = talk.children[i]; if (old) old.replaceWith(turnElement(turn, i));
  if (isLow) talk.scrollTop = talk.scrollHeight;
}

// ---- charts ----
const series = { rate: [], step: [], kv: [], run: [] }; let before = null;
async function sample() {
  if (document.hidden || ($("charts").hidden && !running)) { before = null; return; }  // charts opened later show the last answers
  try {
    const reply = await fetch("stats", { headers: headers() }); if (!reply.ok) throw 0;
    const s = await reply.json(), t = performance.now() / 1000;
    if (before) {
      const dt = t - before.t, steps = s.steps - before.s.steps;
      add("rate", (s.output_tokens - before.s.output_tokens) / dt, 1); add("step", steps ? 1000 * (s.model_seconds - before.s.model_seconds) / steps : 0, 1);
      add("kv", s.kv_blocks ? 100 * s.kv_blocks_used / s.kv_blocks : 0, 1);
      const waste = places => places ? Math.max(0, 100 - 100 * s.kv_tokens_used / places).toFixed(0) : 0;
      if (s.running) $("v-waste").textContent = `unused ${waste(s.kv_slots_used)} %, if preallocated ${waste(s.kv_contiguous_slots)} %`; add("run", s.running + s.waiting, 0);
    }
    before = { s, t };
  } catch { before = null; }
}
function add(name, value, digits) {
  const list = series[name]; list.push(value); if (list.length > 120) list.shift();
  const most = Math.max(1e-9, ...list), shown = Math.max(30, list.length), at = i => 240 * (i + shown - list.length) / (shown - 1);
  const points = list.map((v, i) => `${at(i)},${59 - 52 * v / most}`).join(" ");
  const shape = (tag, where) => { const e = document.createElementNS("http://www.w3.org/2000/svg", tag); e.setAttribute("points", where); return e; };
  $("c-" + name).replaceChildren(shape("polygon", `${at(0)},60 ${points} 240,60`), shape("polyline", points));
  $("v-" + name).textContent = value.toFixed(digits); $("m-" + name).textContent = most > 1e-6 ? "at most " + most.toFixed(digits) : "";
}
setInterval(sample, 1000);

// ---- wiring ----
for (const name of Object.keys(defaults)) {
  const field = $("s-" + name), isBox = field.type === "checkbox";
  if (isBox) field.checked = settings[name]; else field.value = settings[name];
  field.onchange = () => { settings[name] = isBox ? field.checked : field.value; save(); if (name === "probs") show(); if (name === "key") loadModel(); };
}
const theme = store.get("theme", ""); if (theme) document.documentElement.dataset.theme = theme;
$("theme").onclick = () => {
  const isDark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = isDark ? "light" : "dark"; store.set("theme", document.documentElement.dataset.theme);
};
$("new").onclick = () => { document.body.classList.remove("open"); fresh(); };
$("menu").onclick = () => document.body.classList.toggle("open");
// Opens or closes a panel above the conversation, whose end stays in sight.
function toggle(name) {
  const talk = $("talk"), isLow = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 8;
  $(name).hidden = !$(name).hidden; $("show-" + name).setAttribute("aria-expanded", !$(name).hidden);
  if (isLow) talk.scrollTop = talk.scrollHeight;
}
$("show-settings").onclick = () => toggle("settings");
$("show-charts").onclick = () => { toggle("charts"); sample(); };
$("shade").onclick = () => document.body.classList.remove("open");
$("talk").onscroll = () => { $("tip").hidden = true; };
document.onclick = e => { if (!e.target.classList.contains("token")) $("tip").hidden = true; };
$("stop").onclick = () => running?.abort();
$("form").onsubmit = e => { e.preventDefault(); const text = $("input").value; if (!running && text.trim()) { $("input").value = ""; grow(); ask(text); } };
function grow() { const i = $("input"); i.style.height = "auto"; i.style.height = i.scrollHeight + 2 + "px"; }
$("input").oninput = grow;
$("input").onkeydown = e => { if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); $("form").requestSubmit(); } };
document.onkeydown = e => {
  if (e.key === "Escape") { running?.abort(); document.body.classList.remove("open"); $("tip").hidden = true; }
  if (e.ctrlKey && e.shiftKey && e.key.toLowerCase() === "o") { e.preventDefault(); fresh(); }
};
async function loadModel() {
  try {
    const reply = await fetch("v1/models", { headers: headers() });
    if (reply.status === 401) { if ($("settings").hidden) toggle("settings"); $("s-key").focus(); return; }
    model = (await reply.json()).data[0]; $("model").textContent = model.id; document.title = model.id + " \u00b7 Sinter"; show();
  } catch { $("model").textContent = "not reachable"; }
}
show(); loadModel(); $("input").focus();
