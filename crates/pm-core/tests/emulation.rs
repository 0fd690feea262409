//! Emulated memories delay accesses, and simulated ones let time pass.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_core::emulation::{Emulated, EmulationError, Preset, SimulatedInstant, Speed};
use pm_core::{Pmem, Region};
use std::time::{Duration, Instant};

fn region() -> Region {
    Region::anonymous(1 << 20).unwrap()
}

const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// The simulated time of `access`.
fn simulated(speed: Speed, access: impl FnOnce(&Emulated<Region>)) -> Duration {
    let emulated = Emulated::new(region(), &speed.simulated(true)).unwrap();
    let begin = SimulatedInstant::now();
    access(&emulated);
    begin.elapsed()
}

/// Whether a simulated time is `asked`, and what other code has taken.
fn is_about(time: Duration, asked: Duration) -> bool {
    (asked..asked + Duration::from_secs(1)).contains(&(time + us(1)))
}

#[test]
fn access_takes_at_least_time_asked_for() {
    let speed = Speed::new().read_latency(us(300)).write_latency(us(400)).barrier_latency(us(500));
    let emulated = Emulated::new(region(), &speed).unwrap();
    let time = |access: &dyn Fn()| {
        let begin = Instant::now();
        access();
        begin.elapsed()
    };
    // What a wait overshoots by is taken from the next one.
    let at_least = |asked: Duration, access: &dyn Fn()| {
        let took = time(access);
        assert!(took + us(101) >= asked, "{took:?} instead of {asked:?}");
    };
    at_least(us(300), &|| _ = emulated.load_u64(0));
    at_least(us(600), &|| emulated.load(60, &mut [0; 8]));
    at_least(us(1200), &|| emulated.load_words(0, &mut [0; 32]));
    at_least(us(300), &|| _ = emulated.compare_exchange_u64(0, 1, 2));
    at_least(us(300), &|| emulated.lend(0, 64, &mut |_| ()));
    at_least(us(300 * 64), &|| emulated.try_load(4096, &mut [0; 4096]).unwrap());
    at_least(us(400 * 64), &|| emulated.store_nt(0, &[1; 4096]));
    at_least(us(400 * 64), &|| emulated.try_store_nt(0, &[1; 4096]).unwrap());
    at_least(us(800), &|| emulated.flush(64, 128));
    at_least(us(500), &|| emulated.fence().unwrap());
    assert_eq!(emulated.load_u64(0), 0x0101_0101_0101_0101);
    assert!(emulated.counts().delayed > us(65_000));
}

#[test]
fn simulated_time_is_that_of_the_model() {
    let ms = Duration::from_millis;
    let speed = Speed::new().read_latency(ms(10)).write_latency(ms(100)).barrier_latency(ms(5000));
    let begin = Instant::now();
    assert!(is_about(simulated(speed, |pmem| pmem.load(0, &mut [0; 640])), ms(100)));
    assert!(is_about(simulated(speed, |pmem| pmem.store_nt(32, &[0; 64])), ms(200)));
    assert!(is_about(simulated(speed, |pmem| pmem.store(32, &[0; 64])), ms(0)));
    assert!(is_about(simulated(speed, |pmem| pmem.persist(32, 64).unwrap()), ms(5200)));
    assert!(is_about(simulated(speed, |pmem| pmem.load(0, &mut [])), ms(0)));
    // Ten lines of which four are served at a time, after an access.
    let pages = speed.read_access(ms(7000)).read_overlap(4);
    assert!(is_about(simulated(pages, |pmem| pmem.load(0, &mut [0; 640])), ms(7000 + 10 + 9 * 10 / 4)));
    // 640 bytes at 64 bytes a second.
    let narrow = speed.read_bandwidth(64);
    assert!(is_about(simulated(narrow, |pmem| pmem.load(0, &mut [0; 640])), ms(10_000)));
    assert!(begin.elapsed() < ms(5000), "nothing waits");
}

#[test]
fn simulated_memory_may_be_faster() {
    let time =
        |speed: Speed| simulated(speed, |pmem| (0..1000).for_each(|at| pmem.load(at * 1024, &mut [0; 1024])));
    let real = Instant::now();
    let fast = time(Preset::SttMram.speed().read_latency(Duration::ZERO));
    let real = real.elapsed();
    assert!(fast < real, "{fast:?} of {real:?}");
}

#[test]
fn bandwidth_is_shared_by_threads() {
    let speed = Speed::new().write_bandwidth(100_000_000).read_bandwidth(100_000_000);
    let emulated = Emulated::new(region(), &speed).unwrap();
    let begin = Instant::now();
    std::thread::scope(|threads| {
        for thread in 0..2_u64 {
            let emulated = &emulated;
            threads.spawn(move || {
                for at in 0..50 {
                    emulated.store_nt(thread * 4096, &[1; 4096]);
                    emulated.load(at * 4096, &mut [0; 4096]);
                }
            });
        }
    });
    // 200 accesses of 4 KiB.
    let least = Duration::from_secs_f64(200.0 * 4096.0 / 1e8);
    assert!(begin.elapsed() + us(10) >= least, "{:?} instead of {least:?}", begin.elapsed());
}

#[test]
fn cached_lines_cost_nothing() {
    let ms = Duration::from_millis;
    let speed = Speed::new().read_latency(ms(10_000)).cache_bytes(4096);
    let load = |pmem: &Emulated<Region>, at| _ = pmem.load_u64(at);
    assert!(is_about(simulated(speed, |pmem| (0..64).for_each(|at| load(pmem, at * 8))), ms(80_000)));
    // 64 lines in turn fit; the line that was loaded 64 lines ago is there no more.
    assert!(is_about(
        simulated(speed, |pmem| [0, 4032, 0, 4096, 0].map(|at| load(pmem, at)).fill(())),
        ms(40_000)
    ));
    let store_and_load = |pmem: &Emulated<Region>| {
        pmem.store_u64(128, 5);
        load(pmem, 128);
    };
    assert!(is_about(simulated(speed, store_and_load), ms(0)));
}

#[test]
fn slowdown_is_relative_to_dram() {
    let copy = |pmem: &Emulated<Region>| (0..100).for_each(|at| pmem.load(at * 8192, &mut [0; 4096]));
    // The shortest of some runs: the thread may be preempted between two accesses.
    let shortest = |speed: Speed| (0..20).map(|_| simulated(speed, copy)).min().unwrap();
    let [once, ten_times] = [1.0, 10.0].map(|factor| shortest(Speed::new().read_slowdown(factor)));
    assert!(ten_times > once * 3 && ten_times < once * 30, "{once:?} and {ten_times:?}");
}

#[test]
fn impossible_speeds_are_refused() {
    let refused = |speed: Speed| Emulated::new(region(), &speed).map(drop).unwrap_err();
    let is_impossible = |speed: Speed| matches!(refused(speed), EmulationError::Impossible(_));
    let slow = Speed::new().read_latency(us(1)).write_latency(us(1));
    assert!(is_impossible(slow.read_bandwidth(0)));
    assert!(is_impossible(slow.write_bandwidth(0)));
    assert!(is_impossible(slow.read_overlap(0)));
    assert!(is_impossible(slow.read_slowdown(0.5)));
    assert!(is_impossible(slow.write_slowdown(f64::NAN)));
    let fast = Preset::SttMram.speed().write_latency(us(1));
    assert!(matches!(refused(fast), EmulationError::TooFast { access: "read", lines: 1, .. }));
    let fast = slow.write_latency(Duration::from_nanos(1));
    assert!(matches!(refused(fast), EmulationError::TooFast { access: "write", .. }));
    // The least latency of a line, and the least one of 64 lines at a time.
    let least = |overlap| {
        let is_possible = |ns: &u64| {
            let speed = Speed::new().read_latency(Duration::from_nanos(*ns)).read_overlap(overlap);
            Emulated::new(region(), &speed).is_ok()
        };
        (1..100_000).find(is_possible).unwrap()
    };
    assert!(least(1_000_000) > least(1));
}

#[test]
fn presets_have_names() {
    for preset in Preset::ALL {
        assert_eq!(preset.name().parse(), Ok(preset));
        Emulated::new(region(), &preset.speed().simulated(true)).unwrap();
    }
    assert!("ram".parse::<Preset>().is_err());
}
