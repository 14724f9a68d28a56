// The form that publishes a message, on the pages of exchanges, queues and streams.

import { path, request } from "./api.js";
import { jsonHelpers, jsonObject, onSubmit } from "./form.js";

/** @param {() => {vhost: string, exchange: string, key?: string}} place */
export function publishForm(place) {
  onSubmit("publishMessage", async (data) => {
    const { vhost, exchange, key } = place();
    const headers = jsonObject(data.headers);
    /** @type {Record<string, any>} */
    const properties = { delivery_mode: Number(data.delivery_mode), ...jsonObject(data.properties) };
    if (Object.keys(headers).length) properties.headers = { ...properties.headers, ...headers };
    const said = await request("POST", path`exchanges/${vhost}/${exchange || "amq.default"}/publish`, {
      body: {
        properties, routing_key: key ?? data.routing_key,
        payload: data.payload, payload_encoding: data.payload_encoding,
      },
    });
    return said.routed ? "Published" : "Published, but no queue took it";
  }, { isKept: true });
  jsonHelpers("dataTags", "properties", [
    ["content_type", "application/json"], ["content_encoding", ""], ["priority", 0], ["correlation_id", ""],
    ["reply_to", ""], ["expiration", "60000"], ["message_id", ""], ["timestamp", Math.floor(Date.now() / 1000)],
    ["type", ""], ["app_id", ""],
  ]);
}
