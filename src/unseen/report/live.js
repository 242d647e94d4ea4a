let stamp = null;
setInterval(async () => {
  try {
    const now = await (await fetch("stamp", { cache: "no-store" })).text();
    if (stamp !== null && now !== stamp) location.reload();
    stamp = now;
  } catch { /* the server has ended: the page stays as it is */ }
}, 2000);
