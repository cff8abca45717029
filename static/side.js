// A drawer at the side: opens once what it shows has come, and closes with its button, Esc or a click beside it.
document.addEventListener("htmx:afterSwap", (event) => {
  const opener = event.detail.requestConfig?.elt?.closest?.("[data-opens]");
  const drawer = opener && document.getElementById(opener.dataset.opens);
  if (!drawer || !drawer.contains(event.detail.target)) return;
  if (!drawer.open) drawer.showModal();
});
