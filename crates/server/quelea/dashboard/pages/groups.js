// Shared subscriptions, their backlog, and their members.

import { number } from "../format.js";
import { List } from "../list.js";
import { Online, Page, html, useGet } from "../ui.js";
import { clientHref } from "./clients.js";

const LIVE_MS = 5000;
const segment = encodeURIComponent;

export function Groups() {
  const namespaces = useGet("/namespaces", { limit: 1 }).data?.items ?? [];
  return html`
    <${Page} title="Shared groups" note="Waiting messages are those that no member could accept yet.">
      <${List} path="/groups" label="Shared groups" columns=${columns(namespaces.length > 0)} every=${LIVE_MS}
        keyOf=${(row) => `${row.namespace} ${row.share} ${row.filter}`}
        empty="No client has a shared subscription ($share/NAME/FILTER)." />
    <//>`;
}

const columns = (hasNamespaces) => [
  { title: "Group", sort: (row) => row.share, cell: (row) => html`<a href=${`#/groups/${segment(row.namespace)}/${segment(row.share)}/${segment(row.filter)}`}>${row.share}</a>` },
  { title: "Filter", wide: true, sort: (row) => row.filter, cell: (row) => html`<span class="mono">${row.filter}</span>` },
  hasNamespaces && { title: "Namespace", sort: (row) => row.namespace, cell: (row) => row.namespace },
  { title: "Members", num: true, sort: (row) => row.members, cell: (row) => number(row.members) },
  { title: "Connected", num: true, sort: (row) => row.online, cell: (row) => number(row.online) },
  { title: "Waiting", num: true, sort: (row) => row.waiting, cell: (row) => (row.waiting > 0 ? html`<strong>${number(row.waiting)}</strong>` : "0") },
].filter(Boolean);

export function Group({ params }) {
  const { namespace, share, filter } = params;
  return html`
    <${Page} title=${share} note=${filter}>
      <p class="back"><a href="#/groups">All groups</a></p>
      <${List} path="/groups/members" params=${{ namespace, share, filter }} label="Members" every=${LIVE_MS}
        keyOf=${(row) => row.client_id} columns=${members(namespace)} empty="The group has no member." />
    <//>`;
}

const members = (namespace) => [
  { title: "", cell: (row) => html`<${Online} is=${row.connected} />` },
  { title: "Client", wide: true, sort: (row) => row.client_id, cell: (row) => (row.client_id == null ? html`<span class="dim">ended</span>` : html`<a class="mono" href=${clientHref(namespace, row.client_id)}>${row.client_id}</a>`) },
  { title: "QoS", num: true, sort: (row) => row.qos, cell: (row) => row.qos },
  { title: "In flight", num: true, sort: (row) => row.in_flight, cell: (row) => number(row.in_flight) },
];
