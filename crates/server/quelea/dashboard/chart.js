// A chart over time, drawn by uPlot.

import { useEffect, useRef } from "./vendor/hooks.js";
import uPlot from "./vendor/uplot.js";
import { html } from "./ui.js";
import { bytes, short } from "./format.js";

const HEIGHT = 150;
const COLOURS = 8;
const charts = new Set();

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Colours are read when a chart is made: another theme makes them again.
export function redraw() {
  for (const make of [...charts]) make();
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

// Steps between the ticks of an axis of bytes: 1, 2, 4 ... of each unit.
const BINARY_STEPS = Array.from({ length: 53 }, (_, exponent) => 2 ** exponent);

function options({ lines, format }, width) {
  const axis = { stroke: style("--dim"), grid: { stroke: style("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  return {
    width,
    height: HEIGHT,
    padding: [8, 12, 0, 0],
    cursor: { sync: { key: "time" }, points: { size: 5 }, drag: { x: false, y: false } },
    legend: { live: true },
    scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
    axes: [
      { ...axis, size: 26, values: (_, ticks, axisNumber, space, step) => ticks.map((time) => clock(time, step)) },
      {
        ...axis, size: 58, ...(format === bytes && { incrs: BINARY_STEPS }),
        values: (_, ticks) => ticks.map((value) => format(value).replace(/\.0(?=\D|$)/, "")),
      },
    ],
    series: [
      { label: "time", value: "{HH}:{mm}:{ss}" },
      ...lines.map(({ label }, place) => ({
        label,
        stroke: style(`--c${place % COLOURS}`),
        width: 1.5,
        points: { show: false },
        value: (chart, value, series, index) => {
          // Without a cursor the legend shows the newest value.
          const list = chart.data[series];
          return format(value ?? (index == null ? list[list.length - 1] : null));
        },
      })),
    ],
  };
}

// The time of the day, with seconds where they differ.
const clock = (time, step) => new Date(time * 1000).toTimeString().slice(0, step < 60 ? 8 : 5);

// `lines`: { label, values }.
export function Chart({ title, unit, times, lines, format = short }) {
  const box = useRef();
  const chart = useRef();
  const shape = `${lines.map((line) => line.label)}`;
  const data = [times, ...lines.map((line) => line.values)];
  const latest = useRef(data);
  latest.current = data;
  useEffect(() => {
    const make = () => {
      chart.current?.destroy();
      chart.current = new uPlot(options({ lines, format }, box.current.clientWidth), latest.current, box.current);
    };
    make();
    charts.add(make);
    const watch = new ResizeObserver(([entry]) =>
      chart.current.setSize({ width: Math.floor(entry.contentRect.width), height: HEIGHT }));
    watch.observe(box.current);
    return () => {
      charts.delete(make);
      watch.disconnect();
      chart.current.destroy();
    };
  }, [shape]);
  useEffect(() => { chart.current.setData(data); }, [times]);
  return html`
    <figure class="chart">
      <figcaption>${title}${unit && html` <span class="dim">${unit}</span>`}</figcaption>
      <div ref=${box} role="img" aria-label=${describe(title, lines, format)}></div>
    </figure>`;
}

function describe(title, lines, format) {
  const parts = lines.map(({ label, values }) => `${label} ${format(values.at(-1))}`);
  return `${title}: ${parts.join(", ")}`;
}
