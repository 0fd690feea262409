//! `pm heap map`

use crate::args::Map;
use crate::cells::{Cells, Use, Wear};
use crate::report::{bytes, say};
use crate::svg;
use crate::view::View;
use miette::{Context as _, IntoDiagnostic as _, bail};
use pm_alloc::CorruptionKind;
use pm_alloc::format::{BlockState, LINE_BYTES};
use serde_json::json;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

/// `pm heap map`
pub(crate) fn run(args: &Map, json: bool) -> miette::Result<()> {
    let (path, output) = (args.file.display(), args.output.display());
    let view = View::open(&args.file)?;
    if is_same_file(args) {
        bail!(help = "choose another path for the picture", "{output}: is the heap itself");
    }
    let (layout, chunks) = (&view.inspection.layout, view.inspection.chunk_count);
    let mut cells = Cells::new(layout.chunks_start..layout.chunk_offset(chunks));
    let checked = view.check(|block| {
        let what = match block.state {
            BlockState::Allocated => Use::Allocated,
            BlockState::Free => Use::Free,
            BlockState::Lost | BlockState::End | BlockState::Unreachable => Use::Lost,
        };
        cells.add(block.payload..block.payload + u64::from(block.lines) * LINE_BYTES, what);
    });
    // The others are reported as unreachable.
    let known = checked
        .report
        .corruptions
        .iter()
        .filter(|corruption| corruption.kind != CorruptionKind::LengthUnknown);
    for corruption in known {
        cells.add(corruption.extent.clone(), Use::Lost);
    }
    let wear = args.wear.as_ref().map(|file| Wear::read(file, &cells)).transpose()?;
    let range = cells.range();
    let size = bytes(range.end - range.start);
    let title = format!("{path}: {size} of blocks from {:#x} to {:#x}", range.start, range.end);
    fs::write(&args.output, svg::svg(&title, &cells, wear.as_ref()))
        .into_diagnostic()
        .wrap_err_with(|| format!("writing {output}"))?;
    if json {
        let (file, svg) = (args.file.to_string_lossy(), args.output.to_string_lossy());
        say(
            json!({ "path": file, "svg": svg, "cells": cells.shares.len(), "cell_bytes": cells.cell_bytes() }),
        );
    } else {
        say(format_args!("{output}: {} cells of {}", cells.shares.len(), bytes(cells.cell_bytes())));
    }
    Ok(())
}

/// Whether the picture would be written over the heap.
fn is_same_file(args: &Map) -> bool {
    let identity = |path| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())).ok();
    identity(&args.output).is_some_and(|output| Some(output) == identity(&args.file))
}
