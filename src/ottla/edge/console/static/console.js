// What the pages do with a script: times in the zone of the reader, keys, the palette, live parts, rows that are loaded
// after the page. Every page can be read without it.
"use strict";

const one = (selector, root = document) => root.querySelector(selector);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const base = document.body.dataset.cluster || "";

// Times: the zone of the reader, with UTC and the age in the title.
const zone = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  fractionalSecondDigits: 3, hour12: false,
});
function age(ms) {
  const steps = [["d", 86400e3], ["h", 3600e3], ["min", 60e3], ["s", 1e3]];
  const [unit, step] = steps.find(([, each]) => Math.abs(ms) >= each) || steps[3];
  return `${Math.round(ms / step)} ${unit} ago`;
}
function localTimes(root) {
  for (const time of all("time[datetime]", root)) {
    const when = new Date(time.dateTime);
    if (Number.isNaN(when.getTime()) || time.title) continue;
    time.title = `${time.textContent} · ${age(Date.now() - when)}`;
    time.textContent = zone.format(when);
  }
}

// Parts that are loaded after the page: <div data-load="URL">. A part that fails says why and can be tried again.
async function load(part) {
  try {
    const answer = await fetch(part.dataset.load, { headers: { accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const found = page.getElementById(part.id) || one("main", page);
    part.replaceChildren(...found.childNodes);
    delete part.dataset.load;
    localTimes(part);
  } catch (error) {
    part.textContent = `Not loaded: ${error.message} `;
    const again = document.createElement("button");
    again.textContent = "Try again";
    again.onclick = () => load(part);
    part.append(again);
  }
}

// Cells that are loaded after the rows: <tbody data-cells="URL.json">, answered {"cells": {"row": {"cell": "text"}}};
// with data-every="SECONDS" again and again while the page is visible. A cell may be {"text", "title", "state"}, too.
function fill(cell, value) {
  if (value === undefined) return;
  const parts = typeof value === "object" ? value : { text: value };
  if (parts.state !== undefined) {
    const state = document.createElement("span");
    state.className = parts.state ? `state ${parts.state}` : "";
    state.textContent = parts.text;
    cell.replaceChildren(state);
  } else if (cell.textContent !== parts.text) cell.textContent = parts.text;
  if (parts.title) cell.title = parts.title;
}
async function loadCells(body) {
  const again = () => {
    if (body.dataset.every) setTimeout(() => loadCells(body), Number(body.dataset.every) * 1000);
  };
  if (document.hidden) return again();
  try {
    const answer = await fetch(body.dataset.cells, { headers: { accept: "application/json" } });
    if (!answer.ok) return again();
    const cells = (await answer.json()).cells || {};
    for (const cell of all("[data-cell]", body)) fill(cell, (cells[cell.dataset.row] || {})[cell.dataset.cell]);
  } catch (error) {
    // The cells stay as they are, and are loaded again.
  }
  again();
}

// Live parts: <div id="x" data-live="URL">. Events have the names of elements: `rows` replaces #rows, `+rows` adds
// its rows at the top of #rows, which keeps at most data-rows-max of them, and `rows+` adds them at the end. With
// data-once a stream that breaks is not opened again, because it would begin from its start.
let stream = null;
function startLive(part) {
  stopLive();
  stream = new EventSource(part.dataset.live);
  part.dataset.running = "yes";
  const seen = new Set();
  const listen = (name) => {
    if (seen.has(name)) return;
    seen.add(name);
    stream.addEventListener(name, (event) => apply(name, event.data));
  };
  for (const target of all("[data-event]", document)) target.dataset.event.split(" ").forEach(listen);
  listen("end");
  stream.onerror = () => {
    if ("once" in part.dataset) return stopLive();
    part.dataset.running = stream && stream.readyState === 2 ? "no" : "wait";
  };
}
function stopLive() {
  if (stream) stream.close();
  stream = null;
  for (const part of all("[data-live]")) part.dataset.running = "no";
}
function apply(name, text) {
  if (name === "end") return stopLive();
  const adds = name.startsWith("+");
  const appends = name.endsWith("+");
  const target = document.getElementById(name.replaceAll("+", ""));
  if (!target) return;
  const made = document.createElement(target.tagName === "TBODY" ? "tbody" : "div");
  const shell = document.createElement("template");
  shell.innerHTML = target.tagName === "TBODY" ? `<table><tbody>${text}</tbody></table>` : text;
  const source = target.tagName === "TBODY" ? one("tbody", shell.content) || shell.content : shell.content;
  made.append(...source.childNodes);
  localTimes(made);
  if (adds) target.prepend(...made.childNodes);
  else if (appends) return target.append(...made.childNodes);
  else target.replaceChildren(...made.childNodes);
  const most = Number(target.dataset.rowsMax || 0);
  while (most && target.children.length > most) target.lastElementChild.remove();
}

// Keys.
let waitsForLetter = false;
let current = -1;
function move(step) {
  const rows = all("main tbody tr").filter((row) => one("a", row));
  if (!rows.length) return;
  current = Math.min(Math.max(current + step, 0), rows.length - 1);
  rows.forEach((row, place) => row.classList.toggle("current", place === current));
  one("a", rows[current]).focus();
}
function isTyping(target) {
  return target.closest("input, select, textarea, [contenteditable]");
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  const key = event.key;
  if (waitsForLetter) {
    waitsForLetter = false;
    const link = one(`.sections a[data-letter="${CSS.escape(key)}"]`);
    if (link) link.click();
  } else if (key === "g") {
    waitsForLetter = true;
  } else if (key === "/") {
    event.preventDefault();
    openPalette();
  } else if (key === "?") {
    one("[data-help]").showModal();
  } else if (key === "j" || key === "k") {
    move(key === "j" ? 1 : -1);
  } else if (key === "l") {
    start(one("[data-start]"));
  } else if (key === "s") {
    stopLive();
  }
});

// The palette: pages at once, objects of the cluster when they arrive.
const palette = one("[data-palette]");
const paletteInput = one("[data-palette-input]");
const paletteList = one("[data-palette-list]");
let asked = 0;
function openPalette() {
  paletteInput.value = "";
  show(all(".sections a").map((link) => ({ title: link.textContent, href: link.href })));
  palette.showModal();
  paletteInput.focus();
}
function show(rows) {
  paletteList.replaceChildren(...rows.map((row) => {
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = row.href;
    link.textContent = row.kind ? `${row.kind}: ${row.title}` : row.title;
    item.append(link);
    return item;
  }));
}
if (palette) {
  paletteInput.addEventListener("input", async () => {
    const text = paletteInput.value.trim();
    const pages = all(".sections a").filter((link) => link.textContent.toLowerCase().includes(text.toLowerCase()))
      .map((link) => ({ title: link.textContent, href: link.href }));
    show(pages);
    const number = ++asked;
    if (!text) return;
    await new Promise((done) => setTimeout(done, 120));
    if (number !== asked) return;
    const answer = await fetch(`${base}/find.json?q=${encodeURIComponent(text)}`);
    if (answer.ok && number === asked) show([...pages, ...(await answer.json()).found]);
  });
  palette.addEventListener("keydown", (event) => {
    const links = all("a", paletteList);
    const place = links.indexOf(document.activeElement);
    if (event.key === "ArrowDown" && links.length) {
      event.preventDefault();
      links[Math.min(place + 1, links.length - 1)].focus();
    } else if (event.key === "ArrowUp" && place >= 0) {
      event.preventDefault();
      (place ? links[place - 1] : paletteInput).focus();
    } else if (event.key === "Enter" && event.target === paletteInput) {
      event.preventDefault();
      if (links.length) location.href = links[0].href;
    }
  });
  for (const button of all("[data-palette-open]")) {
    button.hidden = false;
    button.addEventListener("click", openPalette);
  }
}

// A button with data-url opens another stream in the part that it names, from an empty list.
function start(button) {
  const part = button && button.dataset.url ? document.getElementById(button.dataset.start) : one("[data-live]");
  if (!part) return;
  if (button && button.dataset.url) {
    part.dataset.live = button.dataset.url;
    delete part.dataset.once;
    for (const rows of all("tbody[data-event]")) rows.replaceChildren();
  }
  startLive(part);
}
for (const button of all("[data-start]")) {
  button.hidden = false;
  button.addEventListener("click", () => start(button));
}
for (const button of all("[data-stop]")) {
  button.hidden = false;
  button.addEventListener("click", stopLive);
}
addEventListener("beforeunload", stopLive);
localTimes(document);
all("[data-load]").forEach(load);
all("[data-cells]").forEach(loadCells);
for (const part of all("[data-live][data-auto]")) startLive(part);
