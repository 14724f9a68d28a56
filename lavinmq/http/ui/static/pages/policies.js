// Users' policies.

import { policyPage } from "../lib/policies.js";

policyPage("policies", "require-policymaker", [
  ["max-length", 0], ["max-length-bytes", 0], ["message-ttl", 0], ["overflow", "reject-publish"], ["expires", 0],
  ["dead-letter-exchange", ""], ["dead-letter-routing-key", ""], ["federation-upstream", ""],
  ["federation-upstream-set", ""], ["delivery-limit", 0], ["max-age", "1M"],
]);
