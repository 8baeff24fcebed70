// Votes by keyboard while the tab Compare is shown: A, B, and S for no difference, wherever the layout has these keys.
() => document.addEventListener("keydown", (event) => {
  const vote = { KeyA: "a", KeyB: "b", KeyS: "same" }[event.code];
  const button = vote && document.getElementById(`vote_vote_${vote}`);
  const isTyping = event.ctrlKey || event.metaKey || event.altKey || event.repeat
    || event.target.closest?.("input:not([type=checkbox]), textarea, [contenteditable], [role=gridcell]");
  if (button?.offsetParent && !isTyping) button.click();
})
