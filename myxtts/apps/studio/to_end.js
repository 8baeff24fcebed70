// Scrolls the log to its end, unless somebody reads above it.
() => setTimeout(() => {
  const box = document.querySelector("#log textarea");
  const isAtEnd = box && (!box.scrollTop || box.scrollTop + 2 * box.clientHeight > box.scrollHeight);
  if (isAtEnd) box.scrollTop = box.scrollHeight;
}, 100)
