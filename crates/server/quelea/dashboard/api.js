// Requests to the management API, and the log-in session.

const BASE = "api/v1";
const KEPT = "quelea.session";
// Set in a tab that has logged out: a certificate logs it in again only when it is asked to.
const LEFT = "quelea.left";
// The least time between two attempts while the broker does not answer.
const RETRY_MS = 2000;
// A broker that has not answered by then is taken for away. It gives up a call after ten seconds.
const ANSWER_MS = 15_000;
// Two polls of two seconds. If nothing has answered a request for so long, what is shown is old.
const STALE_MS = 4000;

export const ROLES = ["viewer", "operator", "admin"];

// What the broker answers instead of a result (RFC 9457).
export class Problem extends Error {
  constructor(status, { detail, place, fix } = {}) {
    super(detail || `status ${status}`);
    Object.assign(this, { status, detail: detail || `status ${status}`, place, fix });
  }
}

// The present session, and whether the broker answers. Changes are announced to listeners.
export const state = {
  session: read(),
  away: false,
  // Since when a broker that takes connections has answered nothing, in ms; null: it answers.
  silentSince: null,
  // Why there is no session, if there was one.
  reason: null,
  routes: new Set(),
};
const listeners = new Set();

export function onChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function announce() {
  for (const listener of [...listeners]) listener();
}

function read() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT));
  } catch {
    return null;
  }
}

function keep(session, reason = null) {
  state.session = session;
  state.reason = reason;
  // Whether there is a certificate is found out anew by each page.
  if (session?.token) sessionStorage.setItem(KEPT, JSON.stringify(session));
  else sessionStorage.removeItem(KEPT);
  announce();
}

export const may = (role) => ROLES.indexOf(state.session?.role) >= ROLES.indexOf(role);

// Whether the broker has a route, such as "GET /topics".
export const has = (route) => state.routes.has(route);

function setAway(away) {
  if (state.away === away) return;
  state.away = away;
  announce();
  if (away) setTimeout(probe, RETRY_MS);
}

async function probe() {
  if (!state.away) return;
  try {
    await get("/caller");
  } catch {
    if (state.away) setTimeout(probe, RETRY_MS);
  }
}

export function query(params = {}) {
  const given = Object.entries(params).filter(([, value]) => value != null && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return text ? `?${text}` : "";
}

// When the requests that wait for an answer were sent. An answer to any shows that the broker runs.
const waiting = new Map();

function setSilent(since) {
  if (state.silentSince === since) return;
  state.silentSince = since;
  announce();
}

setInterval(() => {
  const since = Math.min(...waiting.values());
  setSilent(performance.now() - since >= STALE_MS ? since : null);
}, 500);

async function awaited(answer) {
  const key = Symbol("request");
  waiting.set(key, performance.now());
  try {
    const given = await answer;
    for (const other of waiting.keys()) waiting.set(other, performance.now());
    return given;
  } finally {
    waiting.delete(key);
    if (waiting.size === 0) setSilent(null);
  }
}

async function send(method, path, { params, body, authorization, signal } = {}) {
  signal ??= AbortSignal.timeout(ANSWER_MS);
  const secret = authorization ?? (state.session?.token && `Bearer ${state.session.token}`);
  // Without a secret the client certificate of the connection decides. Browsers show one only with
  // credentials; the broker sets no cookies.
  const headers = secret ? { Authorization: secret } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  try {
    return await awaited(fetch(BASE + path + query(params), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      credentials: secret ? "omit" : "same-origin",
      redirect: "error",
      referrerPolicy: "no-referrer",
      signal,
    }));
  } catch (error) {
    if (error.name === "AbortError") throw error;
    setAway(true);
    throw new Problem(0, {
      detail: "the broker does not answer",
      fix: "the page tries again by itself; check that the broker runs",
    });
  }
}

async function problemOf(answer) {
  const text = await answer.text();
  try {
    return new Problem(answer.status, JSON.parse(text));
  } catch {
    return new Problem(answer.status, { detail: text.trim() || answer.statusText });
  }
}

export async function request(method, path, options = {}) {
  const asked = state.session;
  const answer = await send(method, path, options);
  setAway(false);
  if (answer.ok) return answer.status === 204 ? null : answer.json();
  const problem = await problemOf(answer);
  if (answer.status === 401 && options.authorization === undefined && asked === state.session) {
    const what = asked?.certificate ? "The client certificate is not accepted any more." : "The session has ended.";
    keep(null, `${what} Log in again.`);
  }
  throw problem;
}

export const get = (path, params, signal) => request("GET", path, { params, signal });
export const post = (path, body, params) => request("POST", path, { body, params });
export const put = (path, body, params) => request("PUT", path, { body, params });
export const del = (path, params) => request("DELETE", path, { params });

function basic(name, password) {
  const utf8 = new TextEncoder().encode(`${name}:${password}`);
  return `Basic ${btoa(String.fromCharCode(...utf8))}`;
}

export async function logIn({ name, password, token }) {
  const authorization = token ? `Bearer ${token}` : basic(name, password);
  keep(await request("POST", "/sessions", { authorization }));
}

// Logs in by the client certificate of the connection, which needs no secret. A tab that has logged
// out `asks` for it first. Without a certificate that gives a role there is no session.
export async function logInByCertificate(asks) {
  if (location.protocol !== "https:" || (sessionStorage.getItem(LEFT) && !asks)) return false;
  const { name, role } = await request("GET", "/caller", { authorization: "" });
  sessionStorage.removeItem(LEFT);
  keep({ name, role, certificate: true });
  return true;
}

// The secret of a link is taken out of the address and the history at once, also in a page that is
// open: it must not be kept or passed on.
export function takeLink() {
  const [, code] = location.hash.match(/^#\/?login=(.*)$/s) || [];
  if (code !== undefined) history.replaceState(null, "", `${location.pathname}#/overview`);
  return code;
}

export async function logOut() {
  const { certificate } = state.session;
  if (location.protocol === "https:") sessionStorage.setItem(LEFT, "1");
  try {
    if (!certificate) await request("DELETE", "/sessions");
  } catch {
    // It ends by itself if the broker is away.
  }
  keep(null);
}

// Which routes there are: an older broker lacks some pages.
export async function learnRoutes() {
  const document = await get("/openapi.json");
  const routes = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.keys(methods).map((method) => `${method.toUpperCase()} ${path}`));
  state.routes = new Set(routes);
  announce();
}

// Server-sent events. Calls `onEvent` for each until the signal aborts or the stream ends. The
// interface of browsers for such streams cannot send the header of a session.
export async function stream(path, params, onEvent, signal) {
  const answer = await send("GET", path, { params, signal });
  if (!answer.ok) throw await problemOf(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const event = {};
      for (const line of block.split("\n")) {
        // U+2028 and its like end no line here, as they would for `.` of an expression.
        const colon = line.indexOf(":");
        if (colon < 1) continue;
        const [name, text] = [line.slice(0, colon), line.slice(colon + 1).replace(/^ /, "")];
        event[name] = name in event ? `${event[name]}\n${text}` : text;
      }
      if (event.data) onEvent(event);
    }
  }
}

// An answer that goes on, part by part. Fails unless the broker says that it has ended.
export async function download(method, path, onPart, signal) {
  const answer = await send(method, path, { signal });
  if (!answer.ok) throw await problemOf(answer);
  const reader = answer.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    await onPart(value);
  }
}
