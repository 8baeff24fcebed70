// Enters a text on the exported page and clicks on Speak. Calls back with the samples, or with the error that is shown.
const [text, done] = arguments, get = (id) => document.getElementById(id);
get("text").value = text;
const timer = setInterval(() => {
  if (!get("speak").disabled && !window.asked) {
    window.asked = true;
    get("speak").click();
  }
  if (get("state").className === "wrong") {
    clearInterval(timer);
    done(get("state").textContent);
  }
  if (window.spoken) {
    clearInterval(timer);
    done([...window.spoken]);
  }
}, 100);
