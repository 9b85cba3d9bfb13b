// The frame of all pages: log-in, navigation, keys, and the banner while the broker is away.

import { render } from "./vendor/preact.js";
import { useEffect, useErrorBoundary, useRef, useState } from "./vendor/hooks.js";
import { has, learnRoutes, logIn, logOut, may, state, takeLink } from "./api.js";
import { redraw } from "./chart.js";
import { Dialogs, Fault, html, notify, useApiState, useGet } from "./ui.js";
import { AlarmBadge, Alarms } from "./pages/alarms.js";
import { Audit } from "./pages/audit.js";
import { Limits } from "./pages/limits.js";
import { LogIn } from "./pages/login.js";
import { Memory } from "./pages/memory.js";
import { Overview } from "./pages/overview.js";
import { Clients } from "./pages/clients.js";
import { Client } from "./pages/client.js";
import { Topics } from "./pages/topics.js";
import { Groups, Group } from "./pages/groups.js";
import { Namespaces } from "./pages/namespaces.js";
import { Backup } from "./pages/backup.js";
import { Bans } from "./pages/bans.js";
import { Bridges } from "./pages/bridges.js";
import { LogLines } from "./pages/loglines.js";
import { Listeners } from "./pages/listeners.js";
import { Logs } from "./pages/logs.js";
import { Cluster } from "./pages/cluster.js";
import { Routing, RoutingRule } from "./pages/routing.js";
import { Rules } from "./pages/rules.js";
import { Settings } from "./pages/settings.js";
import { Events } from "./pages/events.js";
import { Messages } from "./pages/messages.js";
import { Permissions } from "./pages/permissions.js";
import { Subscriptions } from "./pages/subscriptions.js";
import { Trace } from "./pages/trace.js";
import { Users } from "./pages/users.js";

// Path, page, name in the navigation, its key after `g`, and what the page needs. A row with a title
// begins a group of the navigation.
const PAGES = [
  { title: "Now" },
  { path: "overview", page: Overview, name: "Overview", key: "o" },
  { path: "alarms", page: Alarms, name: "Alarms", key: "q", route: "GET /alarms", badge: AlarmBadge },
  { path: "events", page: Events, name: "Events", key: "e" },
  { path: "trace", page: Trace, name: "Trace", key: "r", role: "operator", route: "GET /trace" },
  { title: "Clients" },
  { path: "clients", page: Clients, name: "Clients", key: "c" },
  { path: "clients/:namespace/:id", page: Client },
  { path: "subscriptions", page: Subscriptions, name: "Subscriptions", key: "u", route: "GET /subscriptions" },
  { path: "groups", page: Groups, name: "Shared groups", key: "g" },
  { path: "groups/:namespace/:share/:filter", page: Group },
  { path: "namespaces", page: Namespaces, name: "Namespaces", key: "n" },
  { title: "Messages" },
  { path: "topics", page: Topics, name: "Topics", key: "t" },
  { path: "messages", page: Messages, name: "Publish & subscribe", key: "p" },
  { path: "routing", page: Routing, name: "Routing", key: "z", route: "GET /rules" },
  { path: "routing/:name", page: RoutingRule },
  { title: "Access" },
  { path: "permissions", page: Permissions, name: "Permissions", key: "a", route: "POST /permissions/explain" },
  { path: "rules", page: Rules, name: "Access rules", key: "y", role: "operator", route: "GET /access/files" },
  { path: "users", page: Users, name: "Users", key: "w", role: "admin", route: "GET /users" },
  { path: "bans", page: Bans, name: "Bans", key: "b" },
  { title: "Broker" },
  { path: "listeners", page: Listeners, name: "Listeners", key: "l" },
  { path: "bridges", page: Bridges, name: "Bridges", key: "x", route: "GET /bridges" },
  { path: "memory", page: Memory, name: "Memory and drops", key: "m", route: "GET /memory" },
  { path: "limits", page: Limits, name: "Limits", key: "i", route: "GET /limits" },
  { path: "logs", page: Logs, name: "Durable log", key: "d" },
  { path: "cluster", page: Cluster, name: "Cluster", key: "k" },
  { title: "Operation" },
  { path: "log", page: LogLines, name: "Log", key: "f", role: "operator", route: "GET /log-lines" },
  { path: "audit", page: Audit, name: "Audit", key: "j", role: "operator", route: "GET /audit" },
  { path: "settings", page: Settings, name: "Settings", key: "s", role: "operator" },
  { path: "backup", page: Backup, name: "Backup", key: "v", role: "admin", route: "POST /backup" },
];
const THEMES = ["system", "light", "dark"];
// The second key of a pair has to follow within this time.
const PAIR_MS = 1500;
const POLL_MS = 2000;
const ALARMS_MS = 5000;

const visible = () => PAGES.filter((page) =>
  page.name && (!page.role || may(page.role)) && (!page.route || has(page.route)));

// The groups of the navigation, without those of which no page is visible.
function groups() {
  const shown = new Set(visible());
  const all = [];
  for (const page of PAGES) {
    if (page.title) all.push({ title: page.title, pages: [] });
    else if (shown.has(page)) all.at(-1).pages.push(page);
  }
  return all.filter(({ pages }) => pages.length > 0);
}

// Who writes an address by hand may leave a % as it is.
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function place() {
  const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map(decoded);
  for (const entry of PAGES.filter((one) => one.path)) {
    const wanted = entry.path.split("/");
    const fits = wanted.length === parts.length
      && wanted.every((name, at) => name.startsWith(":") || name === parts[at]);
    if (!fits) continue;
    const params = Object.fromEntries(wanted.map((name, at) => [name.slice(1), parts[at]])
      .filter((_, at) => wanted[at].startsWith(":")));
    return { entry, params, query: Object.fromEntries(new URLSearchParams(search)) };
  }
  return { entry: PAGES.find((one) => one.path), params: {}, query: {} };
}

function usePlace() {
  const [now, setNow] = useState(place);
  useEffect(() => {
    const change = () => setNow(place());
    addEventListener("hashchange", change);
    return () => removeEventListener("hashchange", change);
  }, []);
  return now;
}

function useKeys(showHelp) {
  useEffect(() => {
    let pairUntil = 0;
    const onKey = (event) => {
      const isTyping = event.target.closest?.("input, select, textarea, dialog");
      if (event.ctrlKey || event.metaKey || event.altKey || isTyping) return;
      const goes = performance.now() < pairUntil;
      pairUntil = 0;
      const page = goes && visible().find(({ key }) => key === event.key);
      if (page) {
        event.preventDefault();
        location.hash = `#/${page.path}`;
      } else if (event.key === "g") {
        pairUntil = performance.now() + PAIR_MS;
      } else if (event.key === "/") {
        event.preventDefault();
        const field = document.querySelector("[data-search]");
        if (field) field.focus();
        else location.hash = "#/clients?search=1";
      } else if (event.key === "?") {
        showHelp((is) => !is);
      }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
}

function ThemeSwitch() {
  const [theme, setTheme] = useState(localStorage.getItem("quelea.theme") ?? "system");
  const change = (next) => {
    setTheme(next);
    if (next === "system") {
      localStorage.removeItem("quelea.theme");
      delete document.documentElement.dataset.theme;
    } else {
      localStorage.setItem("quelea.theme", next);
      document.documentElement.dataset.theme = next;
    }
    redraw();
  };
  return html`
    <label class="theme"><span class="hidden">Colours</span>
      <select value=${theme} onChange=${(event) => change(event.target.value)}>
        ${THEMES.map((name) => html`<option value=${name}>${name}</option>`)}</select></label>`;
}

function Help({ close }) {
  const box = useRef();
  useEffect(() => { box.current.showModal(); }, []);
  return html`
    <dialog ref=${box} onClose=${close} aria-labelledby="help">
      <h2 id="help">Keys</h2>
      <dl class="keys">
        <div><dt><kbd>/</kbd></dt><dd>search</dd></div>
        <div><dt><kbd>?</kbd></dt><dd>this list</dd></div>
        ${visible().map(({ key, name }) => html`<div><dt><kbd>g</kbd> <kbd>${key}</kbd></dt><dd>${name}</dd></div>`)}
      </dl>
      <div class="buttons"><button onClick=${() => box.current.close()}>Close</button></div>
    </dialog>`;
}

// A page that fails leaves the navigation as it is; another address begins anew.
function Guarded({ children }) {
  const [fault] = useErrorBoundary();
  return fault ? html`<${Fault} problem=${{ detail: `this page failed: ${fault.message}`, fix: "choose another page, or load this one again" }} />` : children;
}

function Frame() {
  const { entry, params, query } = usePlace();
  const [menu, setMenu] = useState(false);
  const [help, setHelp] = useState(false);
  const main = useRef();
  const broker = useGet("/broker", undefined, POLL_MS);
  const alarms = useGet(has("GET /alarms") ? "/alarms" : null, undefined, ALARMS_MS);
  useKeys(setHelp);
  const hash = location.hash;
  useEffect(() => {
    setMenu(false);
    scrollTo(0, 0);
  }, [hash]);
  const [section] = entry.path.split("/");
  const info = broker.data;
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to the content</a>
    ${info?.cells_missing && html`<div class="away" role="alert">Cells that do not answer: ${info.cells_missing.join(", ")}. What they have is missing on all pages.</div>`}
    <aside class=${menu ? "side open" : "side"}>
      <div class="brand">
        <a href="#/overview">quelea</a>
        <span class="dim">${info?.version}</span>
        ${info && info.state !== "ready" && html`<span class="badge warn" title=${info.detail}>${info.state}</span>`}
        ${!menu && html`<a class="narrow" href="#/alarms" aria-label="Alarms"><${AlarmBadge} alarms=${alarms} /></a>`}
        <button class="menu" aria-expanded=${menu} onClick=${() => setMenu(!menu)}>Menu</button>
      </div>
      <nav aria-label="Pages">
        ${groups().map(({ title, pages }) => html`
          <div class="group" role="group" aria-label=${title}><span class="dim" aria-hidden="true">${title}</span>
            ${pages.map(({ path, name, key, badge: Mark }) => html`
              <a href=${`#/${path}`} aria-current=${section === path ? "page" : null} title=${`g ${key}`}>${name}${Mark && html`<${Mark} alarms=${alarms} />`}</a>`)}
          </div>`)}
      </nav>
      <div class="who">
        <span title="name and role of this session">${state.session.name} <span class="dim">${state.session.role}</span></span>
        <${ThemeSwitch} />
        <button class="plain" onClick=${() => setHelp(true)}>Keys</button>
        <button class="plain" onClick=${logOut}>Log out</button>
      </div>
    </aside>
    <main id="main" ref=${main} tabindex="-1">
      <${Guarded} key=${`${entry.path} ${Object.values(params).join(" ")}`}>
        <${entry.page} params=${params} query=${query} alarms=${alarms} broker=${info} /><//>
    </main>
    ${help && html`<${Help} close=${() => setHelp(false)} />`}`;
}

// A link that is opened in a page with a session begins a new one.
function useLinks() {
  useEffect(() => {
    const follow = () => {
      const code = state.session ? takeLink() : undefined;
      if (code !== undefined) logIn({ token: code }).catch((problem) =>
          notify(null, problem.status === 401 ? { detail: "the link was used, or is too old" } : problem));
    };
    follow();
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
}

function App() {
  const { session, away, silentSince, routes } = useApiState();
  useLinks();
  const [fault, setFault] = useState(null);
  const token = session && (session.token ?? session.name);
  const learn = () => learnRoutes().then(() => setFault(null), setFault);
  useEffect(() => { if (token) learn(); }, [token, away]);
  const isReady = session && routes.size > 0;
  return html`
    ${away && html`<div class="away" role="alert">The broker does not answer. Trying again every two seconds.</div>`}
    ${!away && silentSince != null && html`<div class="away" role="alert">The broker has not answered for some seconds. What is shown is old.</div>`}
    ${!session ? html`<${LogIn} />` : isReady ? html`<${Frame} />` : html`<p class="wait">${fault ? fault.detail : "Loading"}</p>`}
    <${Dialogs} />`;
}

addEventListener("unhandledrejection", (event) => {
  if (event.reason?.status === undefined) return;
  event.preventDefault();
  notify(null, event.reason);
});
const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
