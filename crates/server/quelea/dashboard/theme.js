// The colours, before anything is drawn. The choice is kept in this browser; without one the
// system decides.
(() => {
  const chosen = localStorage.getItem("quelea.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
