// Topics: retained messages, and who receives messages on a topic.

import { useEffect, useState } from "../vendor/hooks.js";
import { del, get, has, may, put, query as queryOf } from "../api.js";
import { SHOWN_BYTES_MAX, bytes, bytesOfBase64, clipped, duration, number, payload } from "../format.js";
import { List } from "../list.js";
import { Badge, Empty, Facts, Fault, Field, Filters, Online, Page, Payload, Section, act, attempt, html, notify, useGet } from "../ui.js";
import { clientHref } from "./clients.js";

const topicsHref = (params) => `#/topics${queryOf(params)}`;

export function Topics({ query }) {
  const namespaces = useGet("/namespaces", { limit: 1000 }).data?.items ?? [];
  const [version, setVersion] = useState(0);
  const { filter = "", namespace = "", topic } = query;
  const change = (next) => { location.hash = topicsHref({ ...next, topic }); };
  const fields = [
    { name: "filter", title: "Topic filter", place: "#", search: true, type: "search" },
    namespaces.length > 0 && {
      name: "namespace", title: "Namespace",
      options: [["", "all"], ["default", "default"], ...namespaces.map(({ name }) => [name, name])],
    },
  ].filter(Boolean);
  const clear = () => {
    const all = ["default", ...namespaces.map(({ name }) => name)];
    clearMatching(filter, namespace ? [namespace] : all, () => setVersion(version + 1));
  };
  const show = (row) => topicsHref({ filter, namespace: row.namespace, topic: row.topic });
  return html`
    <${Page} title="Topics" actions=${may("operator") && html`<button onClick=${() => edit({ namespace: namespace || "default" }, () => setVersion(version + 1))}>Retain a message</button>`}>
      ${topic && html`<${Message} topic=${topic} namespace=${namespace || "default"} changed=${() => setVersion(version + 1)} />`}
      <${Receivers} key=${topic} topic=${topic} namespace=${namespace || "default"} filter=${filter} />
      ${has("GET /topics") && html`
        <${Section} title="Tree" note="Topics with a retained message.">
          <${Tree} key=${`${namespace || "default"} ${version}`} namespace=${namespace || "default"} href=${(name) => show({ topic: name, namespace: namespace || "default" })} />
        <//>`}
      <${Section} title="Retained messages" actions=${may("operator") && has("DELETE /retained") && filter
        && html`<button class="danger" onClick=${clear}>Clear all that match</button>`}>
        <${Filters} values=${{ filter, namespace }} fields=${fields} onChange=${change} />
        <${List} path="/retained" params=${{ filter, namespace }} label="Retained messages" version=${version}
          keyOf=${(row) => `${row.namespace} ${row.topic}`} columns=${columns(show, namespaces.length > 0)}
          empty=${filter ? "No retained message matches this filter." : "There is no retained message."} />
      <//>
    <//>`;
}

const columns = (show, hasNamespaces) => [
  { title: "Topic", wide: true, sort: (row) => row.topic, cell: (row) => html`<a class="mono" href=${show(row)}>${row.topic}</a>` },
  hasNamespaces && { title: "Namespace", sort: (row) => row.namespace, cell: (row) => row.namespace },
  { title: "Value", cell: (row) => html`<span class="mono clip">${preview(row)}</span>` },
  { title: "QoS", num: true, sort: (row) => row.qos, cell: (row) => row.qos },
  { title: "Size", num: true, sort: (row) => row.payload_bytes, cell: (row) => bytes(row.payload_bytes) },
  { title: "Expires", num: true, sort: (row) => row.expires_in_secs, cell: (row) => (row.expires_in_secs == null ? html`<span class="dim">never</span>` : `in ${duration(row.expires_in_secs)}`) },
].filter(Boolean);

function preview(row) {
  const shown = row.payload ?? payload(bytesOfBase64(row.payload_base64)).text.split("\n")[0];
  return shown.slice(0, 80);
}

// Levels of a branch that are shown at once.
const LEVELS = 100;

// One branch: its levels are asked for when it is opened.
function Tree({ namespace, prefix, href }) {
  const [rows, setRows] = useState([]);
  const [cursor, setCursor] = useState(undefined);
  const [open, setOpen] = useState({});
  const [problem, setProblem] = useState(null);
  const more = async () => {
    try {
      const page = await get("/topics", { namespace, prefix, limit: LEVELS, cursor });
      setRows((old) => [...old, ...page.items]);
      setCursor(page.cursor);
    } catch (error) {
      setProblem(error);
    }
  };
  useEffect(() => { more(); }, []);
  if (cursor === undefined) return problem ? html`<${Fault} problem=${problem} />` : null;
  if (rows.length === 0) return html`<${Empty}>No topic has a retained message.<//>`;
  const row = ({ level, topic, retained, topics_below: below, counted }) => html`
    <li key=${topic}>
      ${below > 0
        ? html`<button class="plain twig" aria-expanded=${!!open[topic]} aria-label=${`${topic}, ${below} below`}
            onClick=${() => setOpen({ ...open, [topic]: !open[topic] })}>${open[topic] ? "−" : "+"}</button>`
        : html`<span class="twig"></span>`}
      ${retained ? html`<a class="mono" href=${href(topic)}>${level || "(empty)"}</a>` : html`<span class="mono">${level || "(empty)"}</span>`}
      ${below > 0 && html` <span class="dim">${number(below)}${counted ? "" : " or more"}</span>`}
      ${open[topic] && html`<${Tree} namespace=${namespace} prefix=${topic} href=${href} />`}
    </li>`;
  return html`
    <ul class="tree">${rows.map(row)}
      ${cursor && html`<li><button class="small" onClick=${more}>More</button></li>`}</ul>`;
}

function Receivers({ topic, namespace, filter }) {
  const [draft, setDraft] = useState(topic ?? "");
  return html`
    <${Section} title="Who gets a message on a topic">
      <form class="filters" onSubmit=${(event) => {
        event.preventDefault();
        location.hash = topicsHref({ filter, namespace, topic: draft });
      }}>
        <${Field} label="Topic"><input class="mono" value=${draft} required autocomplete="off" spellcheck=${false}
          onInput=${(event) => setDraft(event.target.value)} /><//>
        <button>Show</button>
      </form>
      ${topic && html`
        <${List} path="/topics/receivers" params=${{ topic, namespace }} label=${`Receivers of ${topic}`}
          columns=${receiverColumns(namespace)} empty=${`No subscription matches ${topic}.`} />`}
    <//>`;
}

const receiverColumns = (namespace) => [
  { title: "", cell: (row) => html`<${Online} is=${row.connected} />` },
  { title: "Client", wide: true, sort: (row) => row.client_id, cell: (row) => (row.client_id == null ? html`<span class="dim">a member of the group</span>` : html`<a class="mono" href=${clientHref(namespace, row.client_id)}>${row.client_id}</a>`) },
  { title: "Shared group", sort: (row) => row.share, cell: (row) => row.share ?? html`<span class="dim">–</span>` },
  { title: "Filter", sort: (row) => row.filter, cell: (row) => html`<span class="mono">${row.filter}</span>` },
  { title: "QoS", num: true, sort: (row) => row.qos, cell: (row) => row.qos },
  { title: "Access rules", sort: (row) => row.allowed, cell: (row) => (row.allowed ? "allow" : html`<${Badge} kind="bad">deny<//>`) },
];

// User properties that are shown.
const PROPERTIES_MAX = 100;

const fileName = (topic) => topic.slice(-80).replace(/[^\w.-]+/g, "_") || "payload";

function Message({ topic, namespace, changed }) {
  const params = { topic, namespace };
  const { data, problem, reload } = useGet("/retained/message", { ...params, payload_bytes_max: SHOWN_BYTES_MAX });
  if (problem?.status === 404) {
    return html`<${Section} title=${topic}><${Empty}>There is no retained message on ${topic}.<//><//>`;
  }
  if (!data) return html`<${Fault} problem=${problem} />`;
  const load = async () => bytesOfBase64((await get("/retained/message", params)).payload_base64);
  const clear = async () => {
    const is = await act({
      title: `Clear the retained message of ${topic}?`, label: "Clear", danger: true,
      text: "New subscribers no longer get it. Clients that have it keep it.",
    }, () => del("/retained/message", { topic, namespace }), `The retained message of ${topic} was cleared.`);
    if (is) { reload(); changed(); }
  };
  const actions = may("operator") && html`
    <button onClick=${() => edit(data, () => { reload(); changed(); })}>Replace</button>
    <button class="danger" onClick=${clear}>Clear</button>`;
  return html`
    <${Section} title=${topic} actions=${actions}>
      <${Facts} rows=${[
        ["QoS", data.qos], ["Size", bytes(data.payload_bytes)],
        ["Content type", data.content_type && clipped(data.content_type)],
        ["Expires", data.expires_in_secs == null ? "never" : `in ${duration(data.expires_in_secs)}`],
        ...data.user_properties.slice(0, PROPERTIES_MAX).map(({ name, value }) => [clipped(name), clipped(value)]),
        data.user_properties.length > PROPERTIES_MAX && ["", `and ${number(data.user_properties.length - PROPERTIES_MAX)} other user properties`],
      ]} />
      <${Payload} data=${bytesOfBase64(data.payload_base64)} size=${data.payload_bytes} load=${load} name=${fileName(topic)} />
    <//>`;
}

// Calls for one page after the other, in each namespace. The sums of what they answer.
async function clearPages(params, namespaces) {
  const sums = { matched: 0, cleared: 0, refused: 0 };
  for (const namespace of namespaces) {
    let cursor = null;
    do {
      const page = await del("/retained", { ...params, namespace, limit: 1000, cursor });
      for (const name of Object.keys(sums)) sums[name] += page[name];
      cursor = page.cursor;
    } while (cursor);
  }
  return sums;
}

async function clearMatching(filter, namespaces, done) {
  let matched = 0;
  if (!await attempt(async () => { ({ matched } = await clearPages({ filter, dry_run: true }, namespaces)); })) return;
  const messages = (count) => `${number(count)} retained ${count === 1 ? "message" : "messages"}`;
  if (matched === 0) {
    notify(`No retained message matches ${filter}.`);
    return;
  }
  const is = await act({
    title: `Clear ${messages(matched)}?`, label: "Clear all", danger: true,
    text: `All that match ${filter} are cleared. Subscribers get an empty message on each topic. It cannot be undone.`,
  }, () => clearPages({ filter }, namespaces),
  ({ cleared, refused }) => `${messages(cleared)} cleared${refused ? `, ${number(refused)} refused: try again` : ""}.`);
  if (is) done();
}

async function edit(message, done) {
  const is = await act({
    title: message.topic ? `Replace the retained message of ${message.topic}?` : "Retain a message",
    text: message.topic ? "Subscribers get the new message now." : "Subscribers get it now, and new subscribers when they subscribe.",
    label: "Publish",
    fields: [
      !message.topic && { name: "topic", title: "Topic", required: true },
      { name: "payload", title: "Payload", lines: 6, value: message.payload ?? "" },
      { name: "qos", title: "QoS", options: [["0", "0"], ["1", "1"], ["2", "2"]], value: String(message.qos ?? 0) },
    ].filter(Boolean),
  }, ({ topic, payload: text, qos }) => put("/retained/message", { payload: text, qos: Number(qos) },
    { topic: message.topic ?? topic, namespace: message.namespace }),
  (answer) => (answer.reason_code < 128 ? "The message is retained." : `Refused: ${answer.reason}.`));
  if (is) done();
}
