"use strict";
// The page /docs: lists the operations of openapi.json and sends requests. Texts are set with textContent only, so that
// no text of the document or of an answer is read as HTML.

const TEXT_CHARS_MAX = 1000000;

// -- requests: functions without the page, which tests call --

/** Return method, URL, headers and body of a request. Empty parameters of the query are left out. */
function makeRequest(method, path, parameters, values, options) {
  let url = path;
  const query = [];
  for (const parameter of parameters) {
    const value = values[parameter.name] ?? "";
    if (parameter.in === "path") {
      if (value === "") throw new Error(`${parameter.name} has no value`);
      url = url.replace(`{${parameter.name}}`, encodeSegment(value));
    } else if (value !== "") {
      query.push(`${encodeURIComponent(parameter.name)}=${encodeURIComponent(value)}`);
    }
  }
  const headers = {};
  if (options.accept) headers["Accept"] = options.accept;
  const hasBody = options.body !== undefined && options.body !== "";
  if (hasBody) headers["Content-Type"] = options.mediaType;
  const authorization = makeAuthorization(options);
  if (authorization) headers["Authorization"] = authorization;
  return {
    method: method.toUpperCase(),
    url: url + (query.length ? `?${query.join("&")}` : ""),
    headers,
    body: hasBody ? options.body : undefined,
  };
}

/** Return one segment of a path. A browser would remove the segments . and .. from the URL. */
function encodeSegment(value) {
  if (value === "." || value === "..") throw new Error(`a browser cannot send the segment ${value}`);
  return encodeURIComponent(value);
}

function makeAuthorization(options) {
  if (options.token) return `Bearer ${options.token}`;
  if (!options.user) return "";
  const bytes = new TextEncoder().encode(`${options.user}:${options.password ?? ""}`);
  return `Basic ${btoa(String.fromCharCode(...bytes))}`;
}

/** Return the same request as a command for a POSIX shell. Secrets are replaced by variables of the shell. */
function curlCommand(request, origin) {
  const words = ["curl"];
  if (request.method !== "GET") words.push("-X", request.method);
  for (const [name, value] of Object.entries(request.headers)) {
    if (name !== "Authorization") words.push("-H", quote(`${name}: ${value}`));
    else if (value.startsWith("Basic ")) words.push("-u", '"$USER_AND_PASSWORD"');
    else words.push("-H", '"Authorization: Bearer $TOKEN"');
  }
  if (request.body !== undefined) words.push("--data-binary", quote(request.body));
  words.push(quote(origin + request.url));
  return words.join(" ");
}

function quote(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/**
 * Return an example of a JSON Schema: with the required members of an object, with all if none is required. References
 * are resolved inside the document.
 */
function example(schema, document_, depth = 0) {
  if (typeof schema !== "object" || schema === null || depth > 8) return null;
  if (schema.$ref) return example(resolve(schema.$ref, document_), document_, depth + 1);
  if (schema.example !== undefined) return schema.example;
  if (schema.examples?.length) return schema.examples[0];
  if (schema.default !== undefined) return schema.default;
  if (schema.const !== undefined) return schema.const;
  if (schema.enum) return schema.enum[0];
  const choice = schema.oneOf ?? schema.anyOf;
  if (choice) return example(choice[0], document_, depth + 1);
  const type = Array.isArray(schema.type) ? schema.type[0] : schema.type;
  if (type === "object" || schema.properties) {
    const made = {};
    for (const [name, inner] of Object.entries(schema.properties ?? {})) {
      if (!schema.required?.length || schema.required.includes(name)) made[name] = example(inner, document_, depth + 1);
    }
    return made;
  }
  if (type === "array") return schema.items ? [example(schema.items, document_, depth + 1)] : [];
  return { string: "", integer: 0, number: 0, boolean: false }[type] ?? null;
}

function resolve(reference, document_) {
  return reference.split("/").slice(1).reduce((node, key) => node?.[key], document_);
}

/** Return JSON with indentation; other text as it is. */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

// -- the page --

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  Object.assign(element, properties);
  element.append(...children);
  return element;
}

const credentials = { user: "", password: "", token: "" };
// The last value of each variable of paths: the next form begins with it, so that an id is typed once.
const lastValues = {};

async function showDocument() {
  const list = document.getElementById("operations");
  let described;
  try {
    const answer = await fetch("openapi.json");
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    described = await answer.json();
  } catch (error) {
    list.replaceChildren(make("p", { textContent: `openapi.json cannot be read: ${error.message}` }));
    return;
  }
  document.getElementById("about").textContent = `Version ${described.info.version}.`;
  const groups = new Map(described.tags.map((tag) => [tag.name, []]));
  for (const [path, methods] of Object.entries(described.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      groups.get(operation.tags[0]).push(showOperation(described, method, path, operation));
    }
  }
  const sections = [...groups].map(([name, rows]) => make("section", {}, make("h2", { textContent: name }), ...rows));
  list.replaceChildren(...showCredentials(described), ...sections);
  document.getElementById("filter").addEventListener("input", (event) => filter(sections, event.target.value));
}

function filter(sections, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  for (const section of sections) {
    let shown = 0;
    for (const row of section.querySelectorAll("details.operation")) {
      row.hidden = !words.every((word) => row.dataset.words.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    section.hidden = shown === 0;
  }
}

function showCredentials(described) {
  const schemes = described.components.securitySchemes ?? {};
  const fields = [];
  const add = (name, text, type) => {
    const input = make("input", { type, autocomplete: "off" });
    input.addEventListener("input", () => { credentials[name] = input.value; });
    fields.push(make("label", {}, make("span", { className: "name", textContent: text }), input));
  };
  if (schemes.basic) { add("user", "User", "text"); add("password", "Password", "password"); }
  if (schemes.bearer) add("token", "Bearer token", "password");
  if (!fields.length) return [];
  const summary = make("summary", {}, make("span", { textContent: "Credentials" }),
    make("span", { className: "words", textContent: "kept in this page only" }));
  return [make("details", {}, summary, make("div", {}, ...fields))];
}

function showOperation(described, method, path, operation) {
  const row = make("details", { className: "operation" }, make("summary", {},
    make("span", { className: `method ${method}`, textContent: method.toUpperCase() }),
    make("span", { className: "path", textContent: path }),
    make("span", { className: "words", textContent: operation.summary })));
  row.dataset.words = `${method} ${path} ${operation.summary}`.toLowerCase();
  // The form is made when the row is opened: a service can have a hundred operations.
  row.addEventListener("toggle", () => {
    if (row.open && row.children.length === 1) row.append(showForm(described, method, path, operation));
  });
  return row;
}

function showForm(described, method, path, operation) {
  const inputs = {};
  const form = make("form", {});
  const parameters = operation.parameters ?? [];
  for (const parameter of parameters) {
    const input = inputs[parameter.name] = makeInput(parameter);
    if (parameter.in === "path") input.value = lastValues[parameter.name] ?? "";
    form.append(label(parameter.name, [parameter.in, parameter.description].filter(Boolean).join(": "), input));
  }
  const [accept, acceptRows] = makeChoice("Accept", mediaTypesOf(operation));
  const content = operation.requestBody?.content ?? {};
  const [mediaType, mediaTypeRows] = makeChoice("Content-Type", Object.keys(content));
  let body;
  form.append(...acceptRows, ...mediaTypeRows);
  if (operation.requestBody) {
    const value = example(Object.values(content)[0].schema, described);
    body = make("textarea", { value: value === null ? "" : JSON.stringify(value, null, 2), spellcheck: false });
    form.append(label("Body", operation.requestBody.required ? "required" : "may be empty", body));
  }
  const stop = make("button", { type: "button", textContent: "Stop", hidden: true });
  form.append(make("div", { className: "row" }, make("button", { className: "send", textContent: "Send" }), stop));
  const output = make("div", {});
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const values = Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.value]));
    for (const parameter of parameters) if (parameter.in === "path") lastValues[parameter.name] = values[parameter.name];
    const options = { accept: accept(), mediaType: mediaType(), body: body?.value, ...credentials };
    send(output, stop, () => makeRequest(method, path, parameters, values, options));
  });
  return make("div", {}, form, output, showErrors(operation));
}

function mediaTypesOf(operation) {
  const good = Object.entries(operation.responses).filter(([status]) => status.startsWith("2"));
  return [...new Set(good.flatMap(([, answer]) => Object.keys(answer.content ?? {})))];
}

function showErrors(operation) {
  const rows = Object.entries(operation.responses).filter(([status]) => /^[45]/.test(status));
  const list = make("ul", {}, ...rows.map(([status, answer]) => make("li", { textContent: `${status} ${answer.description}` })));
  return make("details", { className: "errors", hidden: !rows.length }, make("summary", { textContent: "Errors" }), list);
}

function label(name, note, input) {
  return make("label", {}, make("span", { className: "name", textContent: name }), " ",
    make("span", { className: "note", textContent: note }), input);
}

function makeInput(parameter) {
  const choices = parameter.schema.type === "boolean" ? ["true", "false"] : parameter.schema.enum;
  if (choices) {
    return make("select", {}, ...["", ...choices].map((each) => make("option", { value: each, textContent: each })));
  }
  const isNumber = ["integer", "number"].includes(parameter.schema.type);
  return make("input", { type: "text", inputMode: isNumber ? "decimal" : "text", required: parameter.in === "path",
    placeholder: parameter.schema.default === undefined ? "" : String(parameter.schema.default), autocomplete: "off" });
}

/** Return a function that returns the chosen media type, and the elements to choose it. */
function makeChoice(name, mediaTypes) {
  if (mediaTypes.length < 2) return [() => mediaTypes[0], []];
  const select = make("select", {}, ...mediaTypes.map((each) => make("option", { value: each, textContent: each })));
  return [() => select.value, [label(name, "", select)]];
}

async function send(output, stop, prepare) {
  const status = make("p", { className: "status", textContent: "Sending." });
  const headers = make("pre", {}), text = make("pre", {}), curl = make("pre", {});
  output.replaceChildren(status);
  const aborter = new AbortController();
  stop.onclick = () => aborter.abort();
  let body = "";
  try {
    const request = prepare();
    curl.textContent = curlCommand(request, location.origin);
    stop.hidden = false;
    const began = performance.now();
    const answer = await fetch(request.url, { ...request, signal: aborter.signal, redirect: "manual" });
    status.textContent = `${answer.status} ${answer.statusText} after ${Math.round(performance.now() - began)} ms`;
    status.classList.add(answer.ok ? "good" : "bad");
    headers.textContent = [...answer.headers].map(([name, value]) => `${name}: ${value}`).join("\n");
    output.replaceChildren(status, curl, headers, text);
    const decoder = new TextDecoder();
    for (const reader = answer.body?.getReader(); reader; ) {
      const { done, value } = await reader.read();
      if (done) break;
      body += decoder.decode(value, { stream: true });
      if (body.length > TEXT_CHARS_MAX) {
        aborter.abort();
        body = `${body.slice(0, TEXT_CHARS_MAX)}\nThe rest is not shown.`;
      }
      text.textContent = body;
    }
    text.textContent = pretty(body);
  } catch (error) {
    if (error.name !== "AbortError") {
      status.textContent = `The request failed: ${error.message}`;
      status.classList.add("bad");
      output.replaceChildren(status, curl);
    }
  } finally {
    stop.hidden = true;
  }
}

if (typeof document !== "undefined") showDocument();
