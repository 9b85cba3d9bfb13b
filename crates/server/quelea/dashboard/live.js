// The metrics that charts are drawn from: polled while pages are visible, and the history that the
// broker keeps.

import { get, has } from "./api.js";

export const POLL_MS = 2000;
// Five minutes of polled values.
const KEPT_MAX = 150;
const LIVE_SECS = KEPT_MAX * POLL_MS / 1000;

// Polled values: times in seconds since 1970, and a list of values for each name.
const live = { times: [], series: new Map() };

function push(times, values) {
  live.times.push(times);
  for (const [name, value] of values) {
    if (!live.series.has(name)) live.series.set(name, Array(live.times.length - 1).fill(null));
    live.series.get(name).push(value);
  }
  for (const list of live.series.values()) {
    if (list.length < live.times.length) list.push(null);
  }
  while (live.times.length > KEPT_MAX) {
    live.times.shift();
    for (const list of live.series.values()) list.shift();
  }
}

// Before the first poll the history of the broker fills the chart.
export async function poll() {
  if (live.times.length === 0) {
    const past = await fetchHistory(LIVE_SECS);
    past.times.forEach((time, place) =>
      push(time, [...past.series].map(([name, values]) => [name, values[place]])));
  }
  const { time_ms: timeMs, series } = await get("/totals");
  const time = timeMs / 1000;
  if (time > (live.times.at(-1) ?? 0)) push(time, series.map(({ name, value }) => [name, value]));
  return { times: [...live.times], series: live.series };
}

export function forget() {
  live.times.length = 0;
  live.series.clear();
}

export async function fetchHistory(windowSecs, series) {
  if (!has("GET /history")) return { times: [], series: new Map() };
  const answer = await get("/history", { window_secs: windowSecs, points_max: 360, series });
  return {
    times: answer.times_ms.map((ms) => ms / 1000),
    series: new Map(answer.series.map(({ name, values }) => [name, values])),
  };
}

export const last = (data, name) => data.series.get(name)?.at(-1);

export const gauge = (data, name) => data.series.get(name) ?? data.times.map(() => null);

// The sample that a rate at a place begins with: the history has one each ten seconds, polls have five
// in that time. A shorter interval would show how messages fall into it, as a zigzag.
const WINDOW_SECS = 10;
const SLACK_SECS = 1;
// Of a broker that has just started.
const FIRST_SECS = 4;

function begins(times) {
  let before = 0;
  return times.map((time, place) => {
    while (before + 1 < place && times[before + 1] <= time - WINDOW_SECS + SLACK_SECS) before += 1;
    return time - times[before] >= (before > 0 ? WINDOW_SECS - SLACK_SECS : FIRST_SECS) ? before : -1;
  });
}

// Per second, over all labels of the name. A counter that got smaller belongs to a broker that was
// started again.
export function rate(data, name) {
  const lists = [...data.series].filter(([full]) => full === name || full.startsWith(`${name}{`))
    .map(([, values]) => values);
  const sum = (place) => (lists.length === 0 || lists.some((values) => values[place] == null)
    ? null : lists.reduce((all, values) => all + values[place], 0));
  const from = begins(data.times);
  return data.times.map((time, place) => {
    const [now, before] = [sum(place), from[place] < 0 ? null : sum(from[place])];
    if (now == null || before == null || now < before) return null;
    return (now - before) / (time - data.times[from[place]]);
  });
}

// The names of a family with its labels: [name, label].
export function family(data, name, label) {
  const pattern = new RegExp(`^${name}\\{.*\\b${label}="([^"]*)"`);
  return [...data.series.keys()].map((full) => [full, full.match(pattern)?.[1]])
    .filter(([, value]) => value != null);
}

// An upper bound of a quantile of a histogram between two samples, in seconds.
export function quantile(data, name, share) {
  const buckets = family(data, `${name}_bucket`, "le")
    .map(([full, bound]) => [bound === "+Inf" ? Infinity : Number(bound), data.series.get(full)])
    .sort(([one], [other]) => one - other);
  const from = begins(data.times);
  return data.times.map((_, place) => {
    const counts = buckets.map(([bound, values]) => [bound, values[place] - values[from[place]]]);
    const all = counts.at(-1)?.[1];
    if (from[place] < 0 || !(all > 0)) return null;
    let [lower, before] = [0, 0];
    for (const [bound, count] of counts) {
      if (count >= all * share) {
        if (bound === Infinity) return lower;
        // Within a bucket the values are taken as evenly spread.
        return lower + (bound - lower) * ((all * share - before) / (count - before || 1));
      }
      [lower, before] = [bound, count];
    }
    return lower;
  });
}
