"use strict";
// Runs page.js with a document object that has what the page uses. Reads the OpenAPI document from stdin.
const fs = require("fs");
const vm = require("vm");
const assert = require("assert");

class Element {
  constructor(tag) {
    Object.assign(this, { tag, children: [], listeners: {}, dataset: {}, value: "", className: "", hidden: false });
    this.classes = new Set();
    this.classList = { add: (name) => this.classes.add(name) };
  }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  fire(name, event = {}) { return this.listeners[name]({ preventDefault() {}, target: this, ...event }); }
  all() { return this.children.flatMap((child) => (child instanceof Element ? [child, ...child.all()] : [])); }
  find(tag, className = "") { return this.all().filter((each) => each.tag === tag && each.className.includes(className)); }
  querySelectorAll() { return this.find("details", "operation"); }
}

const byId = Object.fromEntries(["operations", "about", "filter"].map((id) => [id, new Element("div")]));
const openapi = JSON.parse(fs.readFileSync(0, "utf-8"));
const requests = [];
const context = vm.createContext({
  TextEncoder, TextDecoder, btoa, AbortController, performance, console,
  location: { origin: "http://shop:8081" },
  document: { createElement: (tag) => new Element(tag), getElementById: (id) => byId[id] },
  fetch: async (url, options) => {
    if (url === "openapi.json") return { ok: true, json: async () => openapi };
    requests.push({ url, ...options });
    return new Response('{"a":[1]}', { status: 404, statusText: "Not Found", headers: { "x-a": "b" } });
  },
});
vm.runInContext(fs.readFileSync(process.argv[2], "utf-8"), context);

async function main() {
  await new Promise(setImmediate);
  const list = byId.operations;
  const rows = list.find("details", "operation");
  const count = Object.values(openapi.paths).flatMap((methods) => Object.keys(methods)).length;
  assert.equal(rows.length, count, "each operation has a row");
  assert.equal(list.find("h2").length, openapi.tags.length);

  byId.filter.fire("input", { target: { value: "ALTER" } });
  assert.deepEqual(rows.filter((row) => !row.hidden).map((row) => row.dataset.words), ["post /topics/{topic}/configs:alter do."]);
  byId.filter.fire("input", { target: { value: "" } });
  assert.ok(rows.every((row) => !row.hidden));

  const row = rows.find((each) => each.dataset.words.startsWith("put /x/"));
  row.open = true;
  row.fire("toggle");
  const [form] = row.find("form");
  const [user, password] = list.children[0].find("input");
  Object.assign(user, { value: "ann" }).fire("input");
  Object.assign(password, { value: "pä" }).fire("input");
  const [a, b] = form.find("input");
  a.value = "s/1"; b.value = "ü";
  form.find("select")[0].value = "application/json";
  assert.equal(form.find("textarea")[0].value, JSON.stringify({ error_code: 0, message: "" }, null, 2), "the body has an example");
  form.find("textarea")[0].value = "it's";
  await form.fire("submit");
  for (let turn = 0; turn < 20; turn++) await new Promise(setImmediate);
  const [sent] = requests;
  assert.equal(sent.url, "/x/s%2F1/%C3%BC");
  assert.equal(sent.method, "PUT");
  assert.equal(sent.headers["Content-Type"], "application/json");
  assert.equal(Buffer.from(sent.headers.Authorization.slice(6), "base64").toString(), "ann:pä");
  const output = row.children[1].children[1];
  const texts = output.children.map((child) => child.textContent);
  assert.match(texts[0], /^404 Not Found after \d+ ms$/);
  assert.equal(texts[1], `curl -X PUT -H 'Content-Type: application/json' -u "$USER_AND_PASSWORD" --data-binary 'it'\\''s' http://shop:8081/x/s%2F1/%C3%BC`);
  assert.match(texts[2], /x-a: b/);
  assert.equal(texts[3], JSON.stringify({ a: [1] }, null, 2));

  const [path, methods] = Object.entries(openapi.paths).find(([each]) => each.startsWith("/x/"));
  const next = context.showForm(openapi, "put", path, methods.put);
  assert.deepEqual(next.find("input").map((input) => input.value), ["s/1", "ü"], "the next form has the same names");

  a.value = "..";
  await form.fire("submit");
  assert.match(row.children[1].children[1].children[0].textContent, /cannot send the segment/);
  assert.equal(requests.length, 1);
  console.log("ok");
}

main();
