//! PostgreSQL, in place of the databases of Fig. 8 that are not public: single rows, and a long join, of a database that is not in memory.

use super::rates::Workload;
use miette::{IntoDiagnostic as _, Result, WrapErr as _, ensure, miette};
use pm_bench::Conversation;
use pm_bench::nvm::figures;
use rustix::fs::Advice;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use xtask::apt::{self, Need};
use xtask::process;

/// Debian's server is in a package of its version, on which the second one depends.
const NEEDS: [Need; 3] = [
    Need::new("bin/pg_lsclusters", "postgresql"),
    Need::new("setpriv", "util-linux"),
    Need::new("unshare", "util-linux"),
];
/// Each has 100,000 rows, in 13 MB.
const SCALE: u32 = 20;
const ROWS: u64 = 100_000 * SCALE as u64;
/// For so long a server starts.
const PATIENCE: Duration = Duration::from_secs(60);
/// Little memory, so that a join writes files, and no work besides the queries.
const SETTINGS: &str = "listen_addresses = ''
shared_buffers = 16MB
work_mem = 4MB
max_parallel_workers_per_gather = 0
max_wal_size = 4GB
checkpoint_timeout = 1h
autovacuum = off
jit = off
";
/// Each row has one partner at a random place: the factor is a prime number.
const JOIN: &str = "SELECT count(*), sum(b.aid::bigint) FROM pgbench_accounts a \
    JOIN pgbench_accounts b ON b.aid = a.aid * 7919::bigint % (SELECT count(*) FROM pgbench_accounts) + 1";

/// A kind of query.
pub(crate) struct Postgres {
    query: &'static str,
}

impl Postgres {
    /// The queries of [`figures::QUERIES`].
    pub(crate) const fn new(query: &'static str) -> Self {
        Self { query }
    }

    /// Why it cannot be run, if so.
    pub(crate) fn missing() -> Option<String> {
        programs().err().map(|error| format!("there is no PostgreSQL: {error}"))
    }
}

impl Workload for Postgres {
    fn title(&self) -> String {
        format!("PostgreSQL, {}", self.query)
    }

    fn cell(&self, technology: &str) -> String {
        figures::database(self.query, technology)
    }

    fn start(&self, at: &Path) -> Result<Conversation> {
        let executable = std::env::current_exe().into_diagnostic()?;
        Conversation::start(Command::new(executable).args(["--serve", self.query]).arg(at))
    }
}

/// A running server.
struct Server {
    programs: PathBuf,
    data: PathBuf,
    process: Child,
}

/// Is the program that queries: loads the database; then for each line `MILLISECONDS` of its input queries it, while nothing of it is in the page cache at
/// first, and writes a line `SECONDS QUERIES`. At the end of the input it checks the rows.
pub(crate) fn serve(query: &str, directory: &Path) -> Result<ExitCode> {
    let server = Server::start(programs()?, directory)?;
    server.load()?;
    println!("ready");
    for line in std::io::stdin().lines() {
        let line = line.into_diagnostic()?;
        let time = Duration::from_millis(line.parse().into_diagnostic().wrap_err(line)?);
        server.forget()?;
        let begin = Instant::now();
        let count = if query == "join" { server.join()? } else { server.select(time)? };
        println!("{} {count}", begin.elapsed().as_secs_f64());
    }
    let rows = server.query("SELECT count(*), count(DISTINCT aid), sum(abalance) FROM pgbench_accounts")?;
    ensure!(rows == format!("{ROWS}|{ROWS}|0"), "the rows of the database are {rows}");
    println!("exact");
    Ok(ExitCode::SUCCESS)
}

impl Server {
    /// Starts one on a new database cluster in `directory`.
    fn start(programs: PathBuf, directory: &Path) -> Result<Self> {
        let data = directory.join("postgres");
        fs::create_dir(&data).into_diagnostic().wrap_err_with(|| data.display().to_string())?;
        process::output(Command::new("chown").arg("postgres:").arg(&data))?;
        let mut initialize = as_postgres(Command::new("setpriv"), &programs.join("initdb"));
        initialize.args(["--no-sync", "--auth=trust", "--no-locale", "--pgdata"]).arg(&data);
        process::output(initialize.current_dir("/"))?;
        fs::write(data.join("postgresql.auto.conf"), SETTINGS).into_diagnostic()?;
        // In a namespace that ends with this process, with all processes of the server and its shared memory.
        let mut alone = Command::new("setpriv");
        alone.args(["--pdeathsig", "KILL", "unshare", "--ipc", "--pid", "--fork", "--kill-child", "setpriv"]);
        let mut server = as_postgres(alone, &programs.join("postgres"));
        server.arg("-D").arg(&data).arg("-k").arg(&data).current_dir("/");
        let log = File::create(directory.join("log")).into_diagnostic()?;
        let process = server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let mut server = Self { programs, data, process: process.into_diagnostic()? };
        let begin = Instant::now();
        while let Err(error) = server.query("SELECT 1") {
            let ended = server.process.try_wait().into_diagnostic()?;
            if ended.is_some() || begin.elapsed() > PATIENCE {
                let log = fs::read_to_string(directory.join("log")).into_diagnostic()?;
                return Err(error).wrap_err_with(|| format!("PostgreSQL does not start: {log}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    fn client(&self, program: &str) -> Command {
        let mut client = Command::new(self.programs.join(program));
        client.arg("--host").arg(&self.data).arg("--username=postgres").current_dir("/");
        client
    }

    /// The result of a query, as psql prints it.
    fn query(&self, query: &str) -> Result<String> {
        let mut client = self.client("psql");
        client.args(["--no-psqlrc", "--tuples-only", "--no-align", "--command", query, "postgres"]);
        Ok(process::output(&mut client)?.trim_end().to_owned())
    }

    fn load(&self) -> Result<()> {
        let scale = SCALE.to_string();
        process::output(self.client("pgbench").args([
            "--initialize",
            "--quiet",
            "--scale",
            &scale,
            "postgres",
        ]))?;
        // So that queries write nothing.
        self.query("VACUUM (FREEZE, ANALYZE) pgbench_accounts")?;
        self.query("CHECKPOINT").map(drop)
    }

    /// Lets the page cache forget the database.
    fn forget(&self) -> Result<()> {
        let data = File::open(&self.data).into_diagnostic()?;
        rustix::fs::syncfs(&data).into_diagnostic()?;
        let mut directories = vec![self.data.clone()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory).into_diagnostic()? {
                let entry = entry.into_diagnostic()?;
                let kind = entry.file_type().into_diagnostic()?;
                if kind.is_dir() {
                    directories.push(entry.path());
                } else if kind.is_file() {
                    let file = File::open(entry.path()).into_diagnostic()?;
                    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).into_diagnostic()?;
                }
            }
        }
        Ok(())
    }

    /// Reads single rows, one after the other, for a time in whole seconds. Returns how many.
    fn select(&self, time: Duration) -> Result<u64> {
        let seconds = time.as_millis().div_ceil(1000).to_string();
        let mut client = self.client("pgbench");
        client.args(["--select-only", "--no-vacuum", "--protocol=prepared", "--time", &seconds, "postgres"]);
        let text = process::output(&mut client)?;
        let after = |what: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(what))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        ensure!(after("number of failed transactions:") == Some(0), "pgbench failed: {text}");
        after("number of transactions actually processed:").ok_or_else(|| miette!("pgbench wrote {text}"))
    }

    /// Joins all rows with all.
    fn join(&self) -> Result<u64> {
        let found = self.query(JOIN)?;
        let expected = format!("{ROWS}|{}", ROWS * (ROWS + 1) / 2);
        ensure!(found == expected, "the join gives {found}, not {expected}");
        Ok(1)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.process.kill().and_then(|()| self.process.wait()) {
            eprintln!("PostgreSQL could not be ended: {error}");
        }
    }
}

/// `before`, continued by this program as the user that Debian has for the server, which refuses root.
fn as_postgres(mut before: Command, program: &Path) -> Command {
    before
        .args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig", "KILL"])
        .arg(program);
    before
}

/// The directory with the newest server's programs.
fn programs() -> Result<PathBuf> {
    apt::ensure(&NEEDS)?;
    let versions = Path::new("/usr/lib/postgresql");
    let entries =
        fs::read_dir(versions).into_diagnostic().wrap_err_with(|| versions.display().to_string())?;
    let version = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.join("bin/postgres").is_file());
    let newest = newest.max_by_key(version);
    newest.map(|path| path.join("bin")).ok_or_else(|| miette!("{} has no server", versions.display()))
}
