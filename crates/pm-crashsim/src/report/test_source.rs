//! A failure as the source of self-contained tests.

use crate::Image;
use crate::line::{LINE, PAIR, WORD};
use crate::outcome::{CrashRecord, Failure, Origin};
use crate::trace::{EventKind, Trace};
use core::fmt::{self, Write};

/// The number of words of a line up to which they are stored one by one.
const WORDS_ALONE: usize = 3;

impl Failure {
    /// Self-contained tests that repeat the failure, as Rust source: one recovers from the image of the last crash,
    /// the other repeats the run call by call and crashes it in the same way.
    ///
    /// A check that is a function is called by its path, as a module of the same crate would; for a closure, and for acknowledgements unless they are
    /// `()`, there are gaps marked `FILL IN`. `None` if the failure is without a crash. The run is left out if it had several threads.
    #[must_use]
    #[expect(clippy::missing_panics_doc, reason = "writing to a string never fails, and each crash is legal")]
    pub fn to_test(&self) -> Option<String> {
        let (first, last) = (&self.crashes.first()?.record, &self.crashes.last()?.record);
        let mut source = String::new();
        write_source(&mut source, self, first, last).expect("writing to a string never fails");
        Some(source)
    }
}

fn write_source(f: &mut String, failure: &Failure, first: &CrashRecord, last: &CrashRecord) -> fmt::Result {
    let origin = &failure.origin;
    let is_of_one_thread = is_of_one_thread(first.trace());
    let check = source_path(origin.check, origin);
    writeln!(f, "//! Crashes that were not recovered from, as pm-crashsim found them.\n//!")?;
    for line in failure.message.lines() {
        writeln!(f, "//! {line}")?;
    }
    let run = if is_of_one_thread { "FenceError, " } else { "" };
    writeln!(f, "\nuse pm_core::{{{run}Pmem}};")?;
    let mut used = vec!["Explorer", "Model", "SimPmem"];
    used.extend(check.is_none().then_some("Crash"));
    used.extend(is_of_one_thread.then_some("Run"));
    used.sort_unstable();
    writeln!(f, "use pm_crashsim::{{{}}};", used.join(", "))?;
    if check.is_none() {
        write_missing_check(f, origin)?;
    }
    let check = check.unwrap_or_else(|| "check".to_owned());
    write_recovery(f, origin, first, last, &check)?;
    match failure.replay_of_record() {
        Some(id) if is_of_one_thread => write_run(f, origin, first, &id, &check),
        _ => writeln!(f, "\n// The run is not repeated here: it was one of several threads."),
    }
}

/// Whether each process had one thread. A process after a kill has new threads.
fn is_of_one_thread(trace: &Trace) -> bool {
    let mut processes = 0;
    trace.events().iter().all(|event| {
        let is_only = event.thread == processes;
        processes += u32::from(matches!(event.kind, EventKind::Kill));
        is_only
    })
}

/// The gap for a check without a name.
fn write_missing_check(f: &mut String, origin: &Origin) -> fmt::Result {
    let acked = source_type(origin.acked, origin);
    writeln!(f, "\n/// FILL IN: the check was `{}`, which has no name to call it by.", origin.check)?;
    writeln!(f, "fn check(_crash: &Crash<'_, {acked}>) -> Result<(), String> {{")?;
    writeln!(f, "    unimplemented!(\"the check of the test that failed\")\n}}")
}

/// The test that starts from the image of the last crash.
fn write_recovery(
    f: &mut String,
    origin: &Origin,
    first: &CrashRecord,
    last: &CrashRecord,
    check: &str,
) -> fmt::Result {
    writeln!(f, "\n/// Recovery from what the crash left.\n#[test]")?;
    writeln!(f, "fn recovers_from_what_the_crash_left() {{")?;
    write_image(f, "left", &last.image().expect("the model allowed the crash"))?;
    let acks = first.trace().acks(first.events());
    let values: Vec<String> = (1..=acks).map(|number| ack_source(origin, number)).collect();
    let acked = source_type(origin.acked, origin);
    writeln!(f, "    let acked: &[{acked}] = &[{}];", values.join(", "))?;
    let explorer = explorer_source(last);
    writeln!(f, "    {explorer}.recover(&left.to_image(), acked, {check}).unwrap();\n}}")
}

/// The test that repeats the run, call by call, and crashes it in the same way.
fn write_run(f: &mut String, origin: &Origin, run: &CrashRecord, id: &str, check: &str) -> fmt::Result {
    let acked = source_type(origin.acked, origin);
    writeln!(f, "\n/// The run, call by call, and the crash of it.\n#[test]")?;
    writeln!(f, "fn recovers_from_the_crash() {{")?;
    write_image(f, "start", run.start())?;
    writeln!(f, "    let operation = |run: &Run<{acked}>| -> Result<(), FenceError> {{")?;
    writeln!(f, "        let pmem = run.pmem();")?;
    let mut acks = 0;
    for (number, event) in run.trace().events().iter().enumerate() {
        if number == run.events() {
            writeln!(f, "        // The crash.")?;
        }
        acks += usize::from(matches!(event.kind, EventKind::Ack));
        if let Some(call) = call_source(run.trace(), event.kind, origin, acks) {
            writeln!(f, "        // {}", run.trace().location_of(number))?;
            writeln!(f, "        {call};")?;
        }
    }
    writeln!(f, "        Ok(())\n    }};")?;
    writeln!(f, "    let explorer = {}.replay(\"{id}\");", explorer_source(run))?;
    writeln!(f, "    explorer.explore(&start.to_image(), operation, {check}).unwrap();\n}}")
}

fn call_source(trace: &Trace, kind: EventKind, origin: &Origin, acks: usize) -> Option<String> {
    let call = match kind {
        EventKind::Store { offset, data } => store_source("pmem", offset, trace.data(data)),
        EventKind::StoreU128 { offset, data } => {
            format!("pmem.store_u128({offset:#x}, {})", pair_source(trace.data(data)))
        }
        EventKind::StoreNt { offset, data } => {
            format!("pmem.store_nt({offset:#x}, &{})", bytes_source(trace.data(data)))
        }
        EventKind::Exchange { offset, data } => format!(
            "pmem.compare_exchange_u64({offset:#x}, pmem.load_u64({offset:#x}), {}).unwrap()",
            word_source(trace.data(data))
        ),
        EventKind::Flush { offset, len_bytes } => format!("pmem.flush({offset:#x}, {len_bytes})"),
        EventKind::FlushOrdered { offset, len_bytes } => format!("pmem.clflush({offset:#x}, {len_bytes})"),
        EventKind::Fence => "pmem.fence()?".to_owned(),
        EventKind::FullFence => "pmem.mfence()".to_owned(),
        EventKind::Ack => format!("run.ack({})", ack_source(origin, acks)),
        EventKind::Kill => "pmem.kill()".to_owned(),
        EventKind::Load { .. } => return None,
    };
    Some(call)
}

/// Stores the words that are not zero.
fn write_image(f: &mut String, name: &str, image: &Image) -> fmt::Result {
    writeln!(f, "    let {name} = SimPmem::new({});", image.len_bytes())?;
    for number in 0..image.len_bytes() / LINE as u64 {
        let line = image.line(number);
        let offset = number * LINE as u64;
        let words = || line.chunks(WORD).enumerate().filter(|(_, word)| word.iter().any(|&byte| byte != 0));
        match words().count() {
            0 => {}
            1..=WORDS_ALONE => {
                for (at, word) in words() {
                    let offset = offset + (at * WORD) as u64;
                    writeln!(f, "    {};", store_source(name, offset, word))?;
                }
            }
            _ => writeln!(f, "    {};", store_source(name, offset, line))?,
        }
    }
    Ok(())
}

fn store_source(name: &str, offset: u64, bytes: &[u8]) -> String {
    if bytes.len() == WORD && offset.is_multiple_of(WORD as u64) {
        format!("{name}.store_u64({offset:#x}, {})", word_source(bytes))
    } else {
        format!("{name}.store({offset:#x}, &{})", bytes_source(bytes))
    }
}

fn word_source(bytes: &[u8]) -> String {
    let mut word = [0; WORD];
    word[..bytes.len()].copy_from_slice(bytes);
    format!("{:#x}", u64::from_le_bytes(word))
}

fn pair_source(bytes: &[u8]) -> String {
    let mut pair = [0; PAIR];
    pair[..bytes.len()].copy_from_slice(bytes);
    format!("{:#x}", u128::from_le_bytes(pair))
}

fn bytes_source(bytes: &[u8]) -> String {
    match bytes {
        [first, rest @ ..] if !rest.is_empty() && rest.iter().all(|byte| byte == first) => {
            format!("[{first}; {}]", bytes.len())
        }
        _ => format!("{bytes:?}"),
    }
}

/// The acknowledgement, as far as it is known: only `()` has a known value.
fn ack_source(origin: &Origin, number: usize) -> String {
    match origin.acked {
        "()" => "()".to_owned(),
        acked => format!("unimplemented!(\"FILL IN: acknowledgement {number}, a {acked}\")"),
    }
}

fn explorer_source(record: &CrashRecord) -> String {
    let rules = record.rules();
    let strict = if rules.strict_ack { ".strict_ack(true)" } else { "" };
    let exchange = if rules.exchange_fences { "" } else { ".exchange_fences(false)" };
    format!("Explorer::new(Model::{:?}){strict}{exchange}", rules.model)
}

/// The path by which a test of the same crate calls a function, if its type is that of a path.
fn source_path(type_name: &str, origin: &Origin) -> Option<String> {
    let name = type_name.trim_start_matches('&');
    let is_name = |part: &str| {
        let mut chars = part.chars();
        chars.next().is_some_and(|c| c.is_alphabetic() || c == '_')
            && chars.all(|c| c.is_alphanumeric() || c == '_')
    };
    let is_path = name.contains("::") && name.split("::").all(is_name);
    is_path.then(|| in_crate(name, origin))
}

fn source_type(type_name: &str, origin: &Origin) -> String {
    in_crate(type_name, origin).replace("alloc::", "std::").replace("core::", "std::")
}

/// The path within the crate.
fn in_crate(path: &str, origin: &Origin) -> String {
    match &origin.program {
        Some(name) => path
            .strip_prefix(&format!("{name}::"))
            .map_or_else(|| path.to_owned(), |rest| format!("crate::{rest}")),
        None => path.to_owned(),
    }
}
