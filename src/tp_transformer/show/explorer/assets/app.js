const DATA = JSON.parse(document.getElementById("data").textContent);
const client = new Client(DATA.models);
window.explorer = { client, models: DATA.models };
