// Shows the version that the last page was told, before the first paint.
"use strict";
(() => {
  const shown = document.getElementById("version");
  const version = sessionStorage.getItem("lavinmq_version");
  if (shown && version) shown.textContent = version;
})();
