//! `pm pool`

use crate::args::{Repair, Target};
use crate::error::AtPath;
use crate::findings::{self, CORRUPTED, Finding, Remedy, print_findings, print_repair};
use crate::report::{self, Asker, field, say};
use crate::view::{open_read_only, recovered};
use jiff::Timestamp;
use miette::IntoDiagnostic as _;
use pm_core::{Pmem as _, Pool, Region, RegionOptions, Root};
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;

/// `pm pool info`
pub(crate) fn info(args: &Target, json: bool) -> miette::Result<()> {
    let pool = open_read_only(&args.file)?;
    let findings = findings_of(&args.file, &pool);
    if json {
        say(to_json(&args.file, &pool, &findings));
        return Ok(());
    }
    let path = args.file.display();
    say(format_args!("{path}: a pool of {} on {}", report::bytes(pool.pool_bytes()), pool.pmem().medium()));
    print_pool(&pool);
    for root in pool.roots() {
        field("root", root_line(&root));
    }
    for finding in &findings {
        field("corruption", finding.message());
    }
    Ok(())
}

/// `pm pool check`
pub(crate) fn check(args: &Target, json: bool) -> miette::Result<ExitCode> {
    let findings = match check_file(&args.file) {
        Ok(findings) => findings,
        Err(error) => vec![Finding::fatal(error.corruption().ok_or(error)?)],
    };
    let path = args.file.display();
    if json {
        let (path, list) = (args.file.to_string_lossy(), findings::to_json(&findings));
        say(json!({ "path": path, "clean": list.is_empty(), "findings": list }));
    } else if findings.is_empty() {
        say(format_args!("{path}: both copies of the header, and the roots, are sound"));
    } else {
        print_findings(&args.file, &findings, "pool");
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(CORRUPTED) })
}

/// `pm pool repair`
pub(crate) fn repair(args: &Repair, json: bool) -> miette::Result<ExitCode> {
    let path = &args.file;
    let found = check_file(path)?;
    let (repairable, mut left): (Vec<Finding>, Vec<Finding>) =
        found.into_iter().partition(|finding| finding.remedy != Remedy::None);
    let (mut restored, mut lost) = (Vec::new(), Vec::new());
    if !repairable.is_empty() {
        let asker = Asker::new(args.yes)?;
        let mut keeps_header = false;
        for finding in repairable {
            let is_lost = finding.remedy == Remedy::Lose;
            let what = if is_lost { "Discard it?" } else { "Restore it from the other copy?" };
            // Opening for writing restores the header: if that is refused, nothing else can be repaired.
            if keeps_header || !asker.ask(&format!("{}: {}. {what}", path.display(), finding.message()))? {
                keeps_header |= !is_lost;
                left.push(finding);
            } else if is_lost {
                lost.push(finding);
            } else {
                restored.push(finding);
            }
        }
    }
    if !restored.is_empty() || !lost.is_empty() {
        let pool = open_to_repair(path)?;
        if !lost.is_empty() {
            pool.discard_corrupted_roots().into_diagnostic()?;
        }
    }
    if json {
        let [restored, lost, left] = [&restored, &lost, &left].map(|findings| findings::to_json(findings));
        let path = path.to_string_lossy();
        say(json!({ "path": path, "restored": restored, "lost": lost, "left": left }));
    } else {
        print_repair(path, &restored, &lost, &[], &left);
    }
    Ok(if left.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(CORRUPTED) })
}

/// Opens the pool, which restores its header.
fn open_to_repair(path: &Path) -> Result<Pool<Region>, AtPath> {
    Pool::open(path, &repair_options()).map_err(AtPath::new(path))
}

/// The options for opening files to be repaired. Stores of earlier processes that the medium lacks are written back. Holes stay: a sparse
/// file may be longer than the free space of its file system.
pub(crate) fn repair_options() -> RegionOptions {
    RegionOptions::new().keep_pages(true).sparse(true)
}

fn check_file(path: &Path) -> Result<Vec<Finding>, AtPath> {
    let pool = open_read_only(path)?;
    Ok(findings_of(path, &pool))
}

fn findings_of(path: &Path, pool: &Pool<Region>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = findings::of_pool_header(pool).into_iter().collect();
    // A heap changes the directory by transactions: a slot that recovery restores is not corrupted.
    let holds_heap = pool.has_logged_roots();
    let remedy = if holds_heap { Remedy::None } else { Remedy::Lose };
    match if holds_heap { recovered(path).ok() } else { None } {
        Some(heap) => findings.extend(findings::of_heap_roots(&heap, remedy)),
        None => {
            let (data, roots) = (pool.data(), pool.roots());
            findings.extend(findings::of_roots(pool.corrupted_root_count(), remedy, &data, roots));
        }
    }
    findings
}

/// Prints the properties of a pool with any contents.
pub(crate) fn print_pool(pool: &Pool<Region>) {
    let (region, data) = (pool.pmem(), pool.data());
    field("identity", pool.uuid());
    field("made", format_args!("{}, format version {}", utc(pool.created_s()), pool.version()));
    field("domain", format_args!("{}: {}", region.domain(), region.domain().promise()));
    field(
        "data",
        format_args!("{} from {:#x} to {:#x}", report::bytes(data.end - data.start), data.start, data.end),
    );
    if region.len_bytes() > pool.pool_bytes() {
        let more = report::bytes(region.len_bytes() - pool.pool_bytes());
        field(
            "growing",
            format_args!("was interrupted, with {more} beyond the pool; growing again completes it"),
        );
    }
}

/// A time in UTC, from seconds since 1970; the number itself beyond the range of the calendar.
fn utc(seconds: u64) -> String {
    let moment = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    moment
        .map_or_else(|| format!("{seconds} s after 1970"), |moment| moment.strftime("%F %T UTC").to_string())
}

/// A pool as JSON.
pub(crate) fn to_json(path: &Path, pool: &Pool<Region>, findings: &[Finding]) -> Value {
    let (region, data) = (pool.pmem(), pool.data());
    json!({
        "path": path.to_string_lossy(),
        "uuid": pool.uuid().to_string(),
        "created_s": pool.created_s(),
        "version": pool.version(),
        "medium": region.medium().name(),
        "domain": region.domain().name(),
        "region_bytes": region.len_bytes(),
        "pool_bytes": pool.pool_bytes(),
        "data_start": data.start,
        "data_bytes": data.end - data.start,
        "roots": pool.roots().iter().map(root_json).collect::<Vec<Value>>(),
        "findings": findings::to_json(findings),
    })
}

pub(crate) fn root_line(root: &Root) -> String {
    let (name, at, layout) = (root.name(), root.offset(), root.layout());
    let bytes = report::count(root.len_bytes(), "byte", "bytes");
    format!("{name}: {bytes} at {at:#x}, layout {layout:#018x}")
}

fn root_json(root: &Root) -> Value {
    json!({
        "name": root.name(),
        "offset": root.offset(),
        "len_bytes": root.len_bytes(),
        // Larger than the numbers of many JSON parsers.
        "layout": format!("{:#018x}", root.layout()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_time_is_formatted() {
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(u64::MAX), "18446744073709551615 s after 1970");
    }
}
