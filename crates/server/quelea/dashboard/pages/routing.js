// Streams and rules: what is stored, what is delivered, and what an operator may do with a rule.

import { may, post } from "../api.js";
import { bytes, duration, number, short } from "../format.js";
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { Badge, Empty, Facts, Fault, Page, Section, Table, When, act, html, useGet } from "../ui.js";

const LIVE_MS = 2000;

// The parts of a sum, each with its title and its colour.
const PARTS = [
  ["delivered", "delivered", "good"],
  ["not_matched", "filter does not match", "none"],
  ["skipped_condition", "condition does not hold", "none"],
  ["skipped_expired", "expired", "none"],
  ["dead_lettered", "in the dead-letter stream", "warn"],
  ["given_up", "given up", "bad"],
  ["dropped_retention", "dropped by a limit of the stream", "bad"],
  ["dropped_damaged", "dropped with a damaged file", "bad"],
  ["in_flight", "in flight", "flight"],
  ["pending", "pending", "wait"],
];
const WAITING = ["paused", "suspended", "starting", "ending"];

export function Routing() {
  const streams = useGet("/streams", { limit: 1000 }, LIVE_MS);
  const rules = useGet("/rules", { limit: 1000 }, LIVE_MS);
  const rates = useRates(rules.data?.items);
  const isEmpty = streams.data?.items.length === 0 && rules.data?.items.length === 0;
  return html`
    <${Page} title="Routing" note="Streams store messages. Rules send them to targets.">
      <${Fault} problem=${rules.problem ?? streams.problem} />
      ${isEmpty && html`<${Empty}>No stream and no rule is defined. Write them into a file, set <span class="mono">routing.file</span> to its path in the configuration, and restart the broker.<//>`}
      ${rules.data?.items.length > 0 && html`
        <${Section} title="Rules"><${Table} label="Rules" rows=${rules.data.items} keyOf=${keyOf} columns=${ruleColumns(rates, rules.reload)} /><//>`}
      ${streams.data?.items.length > 0 && html`
        <${Section} title="Streams"><${Table} label="Streams" rows=${streams.data.items} keyOf=${keyOf} columns=${STREAMS} /><//>`}
    <//>`;
}

export function RoutingRule({ params }) {
  const { data: rule, problem, reload } = useGet("/rule", { name: params.name }, LIVE_MS);
  return html`
    <${Page} title=${params.name} note="rule" actions=${rule && html`<${Actions} rule=${rule} reload=${reload} />`}>
      <p class="back"><a href="#/routing">All streams and rules</a></p>
      <${Fault} problem=${problem} />
      ${rule && html`
        <${Section} title="Messages of this run" note=${`${number(rule.sum.stored)} stored`}><${SumBar} sum=${rule.sum} /><//>
        <div class="columns">
          <${Section} title="State"><${Facts} rows=${stateRows(rule)} /><//>
          <${Section} title="Definition"><${Facts} rows=${definitionRows(rule)} /><//>
          <${Section} title="Since the start of the broker"><${Facts} rows=${counterRows(rule.counters)} /><//>
        </div>`}
    <//>`;
}

const keyOf = (row) => row.name;
const mono = (text) => html`<span class="mono">${text}</span>`;

// Deliveries per second of each rule, from one answer to the next.
function useRates(rules) {
  const before = useRef(new Map());
  const [rates, setRates] = useState(new Map());
  useEffect(() => {
    if (!rules) return;
    const now = performance.now();
    const next = new Map();
    for (const { name, counters } of rules) {
      const last = before.current.get(name);
      const secs = last && (now - last.at) / 1000;
      if (secs > 0 && counters.delivered >= last.delivered) next.set(name, (counters.delivered - last.delivered) / secs);
    }
    before.current = new Map(rules.map(({ name, counters }) => [name, { at: now, delivered: counters.delivered }]));
    setRates(next);
  }, [rules]);
  return rates;
}

function State({ rule }) {
  if (!rule.enabled) return html`<${Badge}>disabled<//>`;
  if (rule.reason == null) return html`<${Badge} kind="good">${rule.state}<//>`;
  return html`<${Badge} kind=${WAITING.includes(rule.state) || rule.state === "in_flight_limit" ? "warn" : "bad"}>${rule.state}<//>`;
}

function SumBar({ sum }) {
  let from = 0;
  const shown = PARTS.filter(([name]) => sum[name] > 0);
  const parts = shown.map(([name, title, kind]) => {
    const part = { name, title, kind, from, share: sum[name] / sum.stored };
    from += part.share;
    return part;
  });
  if (shown.length === 0) return html`<${Empty}>The stream has stored no message since the run began.<//>`;
  const percent = (share) => `${share * 100}%`;
  return html`
    <svg class="sum-bar" role="img" aria-label=${shown.map(([name, title]) => `${title}: ${number(sum[name])}`).join(", ")}>
      ${parts.map(({ name, kind, from: x, share }) => html`<rect key=${name} class=${kind} x=${percent(x)} width=${percent(share)} height="100%" />`)}
    </svg>
    <ul class="sum-key">${parts.map(({ name, title, kind }) => html`
      <li key=${name}><svg class="sum-mark" aria-hidden="true"><rect class=${kind} width="100%" height="100%" /></svg>${title} <strong>${number(sum[name])}</strong></li>`)}
    </ul>`;
}

const lag = (row) => (row.lag_messages === 0 ? "none"
  : `${number(row.lag_messages)}${row.lag_seconds == null ? "" : ` (${duration(row.lag_seconds)})`}`);
const lost = (sum) => sum.given_up + sum.dropped_retention + sum.dropped_damaged;

const stateRows = (rule) => [
  ["State", html`<${State} rule=${rule} />`],
  ["Waits because", rule.reason],
  ["Tries again", rule.until && html`<${When} ms=${Date.parse(rule.until)} />`],
  ["Lag", lag(rule)],
  ["Last outcome", rule.stalled_secs == null ? null : `${duration(rule.stalled_secs)} ago or more`],
  ["Run", number(rule.run)],
  ["Position", mono(rule.position)],
  ["Last error", rule.last_error],
];

const definitionRows = (rule) => [
  ["Namespace", rule.namespace],
  ["Stream", rule.stream],
  ["Filter", mono(rule.filter)],
  ["Form", rule.form],
  ["Target", `${rule.target} (${rule.target_kind})`],
  rule.target_topic && ["Kafka topic", mono(rule.target_topic)],
  ["Dead letters", rule.dead_letter ?? "discarded"],
];

const counterRows = (counters) => [
  ["Delivered", number(counters.delivered)],
  ["Dead letters", number(counters.dead_lettered)],
  ["Given up", number(counters.given_up)],
  ["Dropped", number(counters.dropped_retention + counters.dropped_damaged)],
  ["Not for the rule", number(counters.not_matched + counters.skipped_condition + counters.skipped_expired)],
  ["Batches", `${number(counters.batches)}, ${number(counters.failed_batches)} of them failed`],
  ["Sent, with retries", number(counters.sent)],
];

async function pause({ name }, reload) {
  const is = await act({
    title: `Pause ${name}?`, label: "Pause", danger: true,
    text: "The rule sends nothing more, also after a restart, until it is resumed. Its stream stores messages, and the limits of the stream delete them.",
  }, () => post("/rule/pause", undefined, { name }), `${name} is paused.`);
  if (is) reload();
}

async function resume({ name }, reload) {
  const is = await act({
    title: `Resume ${name}?`, label: "Resume", text: "The rule sends the messages that are pending.",
  }, () => post("/rule/resume", undefined, { name }), `${name} is resumed.`);
  if (is) reload();
}

async function seek({ name }, reload) {
  const is = await act({
    title: `Move ${name}?`, label: "Move", danger: true,
    text: "The rule continues from there. Messages that were delivered before are sent again, and messages that are passed are not sent.",
    fields: [{ name: "to", title: "To", value: "beginning", required: true, hint: "beginning, end, a time such as 2026-12-31T23:59:59Z, or a position" }],
  }, ({ to }) => post("/rule/seek", { to: to.trim() }, { name }), `${name} is moved.`);
  if (is) reload();
}

function Actions({ rule, reload }) {
  if (!may("operator")) return null;
  return html`
    ${rule.enabled && html`<button onClick=${() => (rule.paused ? resume : pause)(rule, reload)}>${rule.paused ? "Resume" : "Pause"}</button>`}
    <button onClick=${() => seek(rule, reload)}>Seek</button>`;
}

const ruleColumns = (rates, reload) => [
  { title: "Rule", sort: keyOf, cell: (row) => html`<a href=${`#/routing/${encodeURIComponent(row.name)}`}>${row.name}</a>` },
  { title: "Stream", sort: (row) => row.stream, cell: (row) => row.stream },
  { title: "Target", sort: (row) => row.target, cell: (row) => html`${row.target} <span class="dim">${row.target_kind}</span>` },
  { title: "State", wide: true, sort: (row) => row.state, cell: (row) => html`<${State} rule=${row} /> <span class="dim">${row.enabled ? row.reason : ""}</span>` },
  { title: "Per second", num: true, sort: (row) => rates.get(row.name), cell: (row) => short(rates.get(row.name)) },
  { title: "Lag", num: true, sort: (row) => row.lag_messages, cell: lag },
  { title: "Delivered", num: true, sort: (row) => row.sum.delivered, cell: (row) => number(row.sum.delivered) },
  { title: "Dead letters", num: true, sort: (row) => row.sum.dead_lettered, cell: (row) => number(row.sum.dead_lettered) },
  { title: "Lost", num: true, sort: (row) => lost(row.sum), cell: (row) => (lost(row.sum) === 0 ? "0" : html`<${Badge} kind="bad">${number(lost(row.sum))}<//>`) },
  may("operator") && { title: "", num: true, cell: (row) => row.enabled && html`<button class="small" onClick=${() => (row.paused ? resume : pause)(row, reload)}>${row.paused ? "Resume" : "Pause"}</button>` },
].filter(Boolean);

function health(row) {
  if (row.write_fault) return html`<${Badge} kind="bad">cannot write<//> <span class="dim">${row.write_fault}</span>`;
  return row.full ? html`<${Badge} kind="bad">full<//>` : html`<${Badge} kind="good">stores<//>`;
}

const STREAMS = [
  { title: "Stream", sort: keyOf, cell: keyOf },
  { title: "Namespace", sort: (row) => row.namespace, cell: (row) => row.namespace },
  { title: "Filters", wide: true, cell: (row) => (row.filters.length === 0 ? html`<span class="dim">dead letters only</span>` : mono(row.filters.join(", "))) },
  { title: "State", cell: health },
  { title: "Stored", num: true, sort: (row) => row.stored_messages, cell: (row) => number(row.stored_messages) },
  { title: "In files", num: true, sort: (row) => row.file_bytes, cell: (row) => `${number(row.file_messages)} (${bytes(row.file_bytes)})` },
  { title: "In the log", num: true, sort: (row) => row.log_messages, cell: (row) => number(row.log_messages) },
  { title: "Rules", num: true, sort: (row) => row.rules, cell: (row) => number(row.rules) },
];
