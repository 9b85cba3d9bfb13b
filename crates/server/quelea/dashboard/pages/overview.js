// The broker at a glance, live and in the last hours.

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { Chart } from "../chart.js";
import { bytes, duration, millis, number, short } from "../format.js";
import { POLL_MS, family, fetchHistory, gauge, last, poll, quantile, rate } from "../live.js";
import { Fault, Page, html, useEvery, useGet } from "../ui.js";

const HISTORY_MS = 10_000;
const RANGES = [["live", "5 min"], ["3600", "1 h"], ["21600", "6 h"]];

function useMetrics(range) {
  const [view, setView] = useState({});
  const waiting = useRef(false);
  const load = async () => {
    waiting.current = true;
    try {
      const data = range === "live" ? await poll() : await fetchHistory(Number(range));
      setView({ range, data });
    } catch (problem) {
      setView((old) => ({ ...old, range, problem }));
    }
    waiting.current = false;
  };
  useEffect(() => { load(); }, [range]);
  useEvery(range === "live" ? POLL_MS : HISTORY_MS, () => waiting.current || load(), [range]);
  return view;
}

export function Overview() {
  const [range, setRange] = useState("live");
  const { data, problem } = useMetrics(range);
  const broker = useGet("/broker", undefined, POLL_MS).data;
  const switcher = html`<div class="tabs" role="group" aria-label="Time">${RANGES.map(([value, text]) => html`
    <button aria-pressed=${range === value} onClick=${() => setRange(value)}>${text}</button>`)}</div>`;
  return html`
    <${Page} title="Overview" actions=${switcher}>
      <${Fault} problem=${problem} />
      ${broker && html`<${Numbers} broker=${broker} data=${data} />`}
      ${data && html`<${Charts} data=${data} />`}
    <//>`;
}

function Numbers({ broker, data }) {
  const newest = (values) => values?.findLast((value) => value != null);
  const perSecond = (name) => (data ? short(newest(rate(data, name)) ?? 0) : "–");
  const tile = (name, value, note, href) => html`
    <div class="tile"><dt>${href ? html`<a href=${href}>${name}</a>` : name}</dt><dd>${value}</dd><dd class="dim">${note}</dd></div>`;
  return html`
    <dl class="tiles">
      ${tile("Connections", number(broker.connections), `${number(broker.sessions)} sessions`, "#/clients?connected=true")}
      ${tile("Messages in", `${perSecond("quelea_publishes_received_total")}/s`, `${short(broker.messages_received)} in total`)}
      ${tile("Messages out", `${perSecond("quelea_publishes_sent_total")}/s`, `${short(broker.messages_sent)} in total`)}
      ${tile("Dropped", number(broker.messages_dropped), `${number(broker.publishes_refused)} publishes refused`, "#/memory")}
      ${tile("Queued", number(data && last(data, "quelea_queued_messages")), `${number(data && last(data, "quelea_in_flight_messages"))} in flight`, "#/clients?queued_min=1")}
      ${tile("Subscriptions", number(broker.subscriptions), `${number(broker.retained_messages)} retained`, "#/topics")}
      ${tile("Memory", bytes(broker.resident_bytes), `up ${duration(broker.uptime_secs)}`)}
    </dl>`;
}

const DROPS = "quelea_messages_dropped_total";

function Charts({ data }) {
  const { times } = data;
  const rates = (pairs) => pairs.map(([label, name]) => ({ label, values: rate(data, name) }));
  const gauges = (pairs) => pairs.map(([label, name]) => ({ label, values: gauge(data, name) }));
  const quantiles = (name) => [["p50", 0.5], ["p99", 0.99]]
    .map(([label, share]) => ({ label, values: quantile(data, name, share) }));
  const has = (name) => data.series.has(name);
  const byQos = (name) => family(data, name, "qos").map(([full, qos]) => [`QoS ${qos}`, full]);
  const [inQos, outQos] = [byQos("quelea_publishes_received_total"), byQos("quelea_publishes_sent_total")];
  const dropped = family(data, DROPS, "reason")
    .filter(([full]) => last(data, full) > 0)
    .map(([full, reason]) => {
      const limit = full.match(/\blimit="([^"]*)"/)?.[1];
      return [reason.replaceAll("_", " ") + (limit ? ` (${limit})` : ""), full];
    });
  const memory = family(data, "quelea_held_bytes", "kind")
    .filter(([, kind]) => kind !== "logged").map(([full, kind]) => [kind, full]);
  const chart = (title, unit, lines, format) =>
    html`<${Chart} key=${title} title=${title} unit=${unit} times=${times} lines=${lines} format=${format} />`;
  return html`
    <div class="charts">
      ${chart("Messages", "per second", rates([["in", "quelea_publishes_received_total"], ["out", "quelea_publishes_sent_total"]]))}
      ${inQos.length > 0 && chart("Messages in by QoS", "per second", rates(inQos))}
      ${outQos.length > 0 && chart("Messages out by QoS", "per second", rates(outQos))}
      ${chart("Bytes", "per second", rates([["in", "quelea_received_bytes_total"], ["out", "quelea_sent_bytes_total"]]), bytes)}
      ${chart("Connections and sessions", "", gauges([["connections", "quelea_connections"], ["sessions", "quelea_sessions"]]))}
      ${chart("Connects and disconnects", "per second", rates([["connects", "quelea_connections_opened_total"], ["disconnects", "quelea_connections_closed_total"]]))}
      ${has('quelea_log_commit_seconds_bucket{le="+Inf"}') && chart("Time until a message is stored", "for its acknowledgement", quantiles("quelea_log_commit_seconds"), millis)}
      ${chart("Event-loop iteration", "of a worker", quantiles("quelea_worker_turn_seconds"), millis)}
      ${chart("Queued and in flight", "messages", gauges([["queued", "quelea_queued_messages"], ["in flight", "quelea_in_flight_messages"]]))}
      ${chart("Dropped", "per second, by reason", dropped.length ? rates(dropped) : [{ label: "none", values: times.map(() => 0) }])}
      ${chart("Memory", "by use", [...gauges([["all", "quelea_memory_held_bytes"]]), ...gauges(memory), ...gauges([["log cache", "quelea_memory_log_cache_bytes"]])], bytes)}
      ${has("quelea_log_used_bytes") && chart("Durable log", "", gauges([["used", "quelea_log_used_bytes"], ["needed", "quelea_log_live_bytes"]]), bytes)}
    </div>`;
}
