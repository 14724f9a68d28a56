// Operators' policies.

import { policyPage } from "../lib/policies.js";

policyPage("operator-policies", "require-administrator", [
  ["max-length", 0], ["max-length-bytes", 0], ["message-ttl", 0], ["expires", 0], ["delivery-limit", 0], ["max-age", "1M"],
]);
