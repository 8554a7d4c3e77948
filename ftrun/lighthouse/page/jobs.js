// The jobs behind a door, with a link to the page of each. The token stays in this tab's memory.
const EVERY_MS = 2000;
const form = document.getElementById("sign-in");

async function show(token) {
  const answer = await fetch("/jobs", { headers: { Authorization: `Bearer ${token}` } });
  document.getElementById("refused").textContent = answer.ok ? "" : "The token is wrong.";
  if (!answer.ok) return;
  const { jobs } = await answer.json();
  document.getElementById("rows").replaceChildren(...jobs.map(row));
  document.getElementById("jobs").hidden = false;
  form.hidden = true;
  setTimeout(() => show(token).catch(() => setTimeout(() => show(token), EVERY_MS)), EVERY_MS);
}

function row(job) {
  const name = document.createElement(job.status_port ? "a" : "span");
  name.textContent = job.status_port ? job.job_id : `${job.job_id} (its lighthouse starts)`;
  if (job.status_port) name.href = `${location.protocol}//${location.hostname}:${job.status_port}/`;
  const cells = [document.createElement("td"), document.createElement("td")];
  cells[0].append(name);
  cells[1].textContent = job.starts;
  cells[1].className = "number";
  const line = document.createElement("tr");
  line.append(...cells);
  return line;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  show(document.getElementById("token").value).catch((error) => {
    document.getElementById("refused").textContent = String(error);
  });
});
