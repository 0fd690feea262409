//! `pmbd`, heaps and pm-fs on a real kernel: file systems, load, killed servers, power cuts. One program, so that one guest runs at a time.

mod lab;
mod logs;
mod media;
mod power_cut;
mod power_cut_fs;
mod power_cut_heap;
mod power_cut_load;
mod strays;
mod takeover;
mod ublk;
