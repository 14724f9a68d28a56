// The node: what it uses of the machine, and what came and went; the cluster that it leads.

import { get, request, rowsOf } from "../lib/api.js";
import { Chart } from "../lib/chart.js";
import { showCluster, showFollowers } from "../lib/cluster.js";
import { byId, facts, toast } from "../lib/dom.js";
import { act } from "../lib/form.js";
import { bytes, count, duration } from "../lib/format.js";
import { known } from "../lib/frame.js";
import { live } from "../lib/live.js";
import { is } from "../lib/session.js";

const MIB = 1 << 20;
const charts = {
  memory: new Chart("memory-chart", { title: "Memory", unit: " MiB" }),
  disk: new Chart("disk-chart", { title: "Disk", isBytes: true }),
  io: new Chart("io-chart", { title: "Disk operations", unit: "/s" }),
  cpu: new Chart("cpu-chart", { title: "Processor", unit: " %", isStacked: true }),
  confirm: new Chart("confirm-latency-chart", { title: "Confirms", unit: " ms" }),
  sync: new Chart("sync-latency-chart", { title: "Syncs to disk", unit: " ms" }),
  http: new Chart("http-latency-chart", { title: "HTTP requests", unit: " ms" }),
  connection: new Chart("connection-chart", { title: "Connection churn", unit: "/s" }),
  channel: new Chart("channel-chart", { title: "Channel churn", unit: "/s" }),
  queue: new Chart("queue-chart", { title: "Queue churn", unit: "/s" }),
};
live({ path: () => "nodes", take: (said) => {
  const node = rowsOf(said)[0] ?? {};
  const na = (/** @type {unknown} */ value, /** @type {() => string} */ text) => (value === undefined ? "N/A" : text());
  const last = (/** @type {string} */ name) => node[`${name}_details`]?.log?.at(-1) ?? 0;
  facts("details", [
    ["Name", node.name],
    ["Uptime", duration((node.uptime ?? 0) / 1000)],
    ["vCPU", na(node.processors, () => count(node.processors))],
    ["Memory usage", na(node.mem_used, () => `${bytes(node.mem_used)} of ${bytes(node.mem_limit)}`)],
    ["Disk usage", na(node.disk_total, () => `${bytes(node.disk_total - node.disk_free)} of ${bytes(node.disk_total)}`)],
    ["CPU Usage", na(node.cpu_user_time, () => `${Math.round((last("cpu_user") + last("cpu_sys")) * 100)} %`)],
    ["Data directory", node.db_dir ?? "N/A"],
  ]);
  const pair = (/** @type {string} */ one, /** @type {string} */ other) => `${count(node[one])} / ${count(node[other])}`;
  facts("stats", [
    ["Connections created / closed", pair("connection_created", "connection_closed")],
    ["Channels created / closed", pair("channel_created", "channel_closed")],
    ["Queues declared / deleted", pair("queue_declared", "queue_deleted")],
    ["File descriptors", na(node.fd_used, () => `${count(node.fd_used)} of ${count(node.fd_total)}`)],
    ["Messages ready", count(node.messages_ready)],
    ["Messages unacknowledged", count(node.messages_unacknowledged)],
  ]);
  const log = (/** @type {string} */ name) => /** @type {number[]} */ (node[`${name}_details`]?.log ?? []);
  const scaled = (/** @type {string} */ name, /** @type {number} */ by) => log(name).map((value) => value * by);
  charts.memory.update([{ label: "Used", values: scaled("mem_used", 1 / MIB) }]);
  charts.disk.update([{ label: "Free", values: log("disk_free") }, { label: "Total", values: log("disk_total") }]);
  charts.io.update([{ label: "Read", values: log("io_read") }, { label: "Write", values: log("io_write") }]);
  charts.cpu.update([{ label: "User", values: scaled("cpu_user", 100) }, { label: "System", values: scaled("cpu_sys", 100) }]);
  for (const name of /** @type {const} */ (["confirm", "sync", "http"])) {
    const took = node.latency?.[name] ?? {};
    charts[name].update([{ label: "Median", values: took.p50_log ?? [] }, { label: "99 %", values: took.p99_log ?? [] }]);
  }
  for (const name of /** @type {const} */ (["connection", "channel"])) {
    charts[name].update([{ label: "Created", values: log(`${name}_created`) }, { label: "Closed", values: log(`${name}_closed`) }]);
  }
  charts.queue.update([{ label: "Declared", values: log("queue_declared") }, { label: "Deleted", values: log("queue_deleted") }]);
  showFollowers(node.followers ?? []);
} });

live({ path: () => "cluster", take: showCluster });

async function showGarbage() {
  const said = await get("nodes/gc_stats");
  facts("gc", [
    ["Collections", count(said.gc_no)],
    ["Memory of the allocator", bytes(said.heap_size)],
    ["Free in it", bytes(said.free_bytes)],
    ["From the system", bytes(said.obtained_from_os_bytes)],
  ]);
}

byId("gc-refresh-btn").addEventListener("click", () => void act(showGarbage));
byId("gc-btn").addEventListener("click", () => void act(async () => {
  await request("POST", "nodes/gc_collect");
  await showGarbage();
  toast("Collected");
}));
void known.then(() => (is() ? act(showGarbage) : undefined));
