// Votes by keyboard while the tab Compare is shown: A, B, and S for no difference. On layouts without Latin letters, the
// keys at the places of these letters are used.
() => document.addEventListener("keydown", (event) => {
  const key = /^[a-z]$/i.test(event.key) ? event.key.toLowerCase() : event.code?.slice(3).toLowerCase();
  const vote = { a: "a", b: "b", s: "same" }[key];
  const button = vote && document.getElementById(`vote_vote_${vote}`);
  const isTyping = event.ctrlKey || event.metaKey || event.altKey || event.repeat
    || event.target.closest?.("input:not([type=checkbox]), textarea, [contenteditable], [role=gridcell]");
  if (button?.offsetParent && !isTyping) button.click();
})
