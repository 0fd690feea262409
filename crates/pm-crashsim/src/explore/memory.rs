//! What is remembered of recoveries that were run: what they read, which contents they started from, and which states they found.
//!
//! A recovery is a function of the bytes that it reads. What recoveries read is kept as a decision tree: a node for each line that one
//! read, in order, with a branch for each content that was found there; the leaves are the runs. Two images that lead to one leaf are
//! recovered from alike, whatever else they hold.

use crate::image::Image;
use crate::line::{Line, LineList, LineSet, PrintMap, fingerprint};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How many nodes a tree may have.
const MAX_NODES: usize = 1 << 21;

/// What recoveries read and where that led, and which contents they started from.
#[derive(Default)]
pub(crate) struct Memory {
    /// By depth of crashes.
    memos: Vec<Memo>,
    /// Numbered over all runs, as the memos are for all.
    pub(super) visits: Visits,
    /// Which contents, after which acknowledgements, were recovered from, and how many more crashes were tried inside.
    /// Images are told apart by their fingerprints: all are over one base.
    tried_inside: FxHashMap<(u128, usize), usize>,
    /// The states that kills left, after which acknowledgements, and how many kills could follow.
    killed: HashMap<(u128, usize), usize>,
    /// Shared with the explorations of other parts of the run.
    states: Arc<States>,
}

/// What a run acknowledged.
#[derive(Clone, Copy)]
pub(crate) struct History<'h, A> {
    pub(crate) acked: &'h [A],
    /// For each count of acknowledgements, from none to all, a number that stands for just these in this order.
    pub(crate) numbers: &'h [usize],
}

impl Memory {
    /// For another part of the same run: what recoveries found is known to both, how they came to it is not.
    pub(super) fn sharing_states(other: &Self) -> Self {
        Self { states: Arc::clone(&other.states), ..Self::default() }
    }

    /// What recoveries found.
    pub(super) const fn states(&self) -> &Arc<States> {
        &self.states
    }

    /// What recoveries read, after that many crashes before the last.
    pub(super) fn memo(&mut self, level: usize) -> &mut Memo {
        if self.memos.len() <= level {
            self.memos.resize_with(level + 1, Memo::default);
        }
        &mut self.memos[level]
    }

    /// Notes that the contents are recovered from, with up to `inside` crashes of the recovery. Whether that is news.
    pub(super) fn is_new(&mut self, fingerprint: u128, history: usize, inside: usize) -> bool {
        let key = (fingerprint, history);
        let is_new = self.tried_inside.get(&key).is_none_or(|&tried| tried < inside);
        if is_new {
            self.tried_inside.insert(key, inside);
        }
        is_new
    }

    /// Notes that a process is killed in that state, and that up to `kills` may be in all. Whether that is news.
    pub(super) fn is_new_kill(&mut self, fingerprint: u128, history: usize, kills: usize) -> bool {
        let tried = self.killed.entry((fingerprint, history)).or_default();
        let is_new = *tried < kills;
        *tried = kills.max(*tried);
        is_new
    }

    /// Notes that the contents were recovered from.
    pub(super) fn note_recovered(&mut self, fingerprint: u128, history: usize) {
        self.tried_inside.entry((fingerprint, history)).or_default();
    }

    /// How many different contents were recovered from. The same ones after other acknowledgements count again.
    #[cfg(any(feature = "loom", feature = "shuttle"))]
    pub(crate) fn images(&self) -> u64 {
        self.tried_inside.len() as u64
    }
}

/// A node of one [`Memo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeId(usize);

/// What is known at a node.
pub(super) enum Known {
    /// The next line that is read.
    Reads(u64),
    /// A run ended here.
    Ran(Ran),
    /// No run came here yet.
    Nothing,
}

/// What is known of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    /// How many more crashes were tried inside.
    pub(crate) inside: usize,
    /// The visit of a point on which that depends, if some of them were not tried because the visit tries the same images
    /// anyway: it holds in the visit, and ever after once the visit has done so.
    pub(crate) only_in: Option<u64>,
}

enum Node {
    /// Most lines have one content wherever they are read here: that child is kept in place, others in a table.
    Read {
        line: u64,
        first: Option<(Line, NodeId)>,
    },
    Ran(Ran),
    Unknown,
}

impl Ran {
    /// Whether it says all that a visit wants to know.
    pub(crate) fn suffices(&self, inside: usize, visit: u64, visits: &Visits) -> bool {
        self.inside >= inside && self.only_in.is_none_or(|only| only == visit || visits.is_done(only))
    }
}

/// The visits of points, and which of them have tried all that they were to try.
#[derive(Default)]
pub(super) struct Visits {
    last: u64,
    done: FxHashSet<u64>,
    /// Done as well, as soon as an earlier one is in which they are, and of which some of what they skipped depends.
    depending: Vec<u64>,
}

impl Visits {
    /// A number for the next one, which no other has.
    pub(crate) const fn begin(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Says that a visit has tried everything, or skipped it because a visit that it is inside of tries it.
    pub(crate) fn all_tried(&mut self, visit: u64, is_inside_another: bool) {
        self.depending.push(visit);
        if !is_inside_another {
            let inside = self.depending.iter().position(|&depending| depending >= visit);
            self.done.extend(self.depending.drain(inside.unwrap_or(0)..));
        }
    }

    /// Says that a visit only tried some of it, so that nothing can depend on it.
    pub(crate) fn some_tried(&mut self, visit: u64) {
        self.depending.retain(|&depending| depending < visit);
    }

    fn is_done(&self, visit: u64) -> bool {
        self.done.contains(&visit)
    }
}

/// The decision trees of one depth of crashes: one for each history of acknowledgements.
#[derive(Default)]
pub(super) struct Memo {
    /// Lines that differ between images. Others are the same in all, so reading them decides nothing.
    watched: Arc<LineSet>,
    nodes: Vec<Node>,
    /// The children that are not the first of their parents, by the fingerprint of parent and content.
    others: PrintMap<NodeId>,
    roots: HashMap<u64, NodeId>,
}

impl Memo {
    /// The lines whose reading is to be recorded.
    pub(crate) const fn watched(&self) -> &Arc<LineSet> {
        &self.watched
    }

    /// Says that these lines differ between images, too. What was learnt before without them is forgotten.
    pub(crate) fn watch(&mut self, lines: impl Iterator<Item = u64>) {
        let mut new = lines.filter(|line| !self.watched.contains(line)).peekable();
        if new.peek().is_some() {
            let added: Vec<u64> = new.collect();
            Arc::make_mut(&mut self.watched).extend(added);
            self.nodes.clear();
            self.others.clear();
            self.roots.clear();
        }
    }

    /// Whether so much was learnt that no more is to be: 200 MB, or a few more for a run that reads very many lines.
    pub(crate) const fn is_full(&self) -> bool {
        self.nodes.len() >= MAX_NODES
    }

    /// Where runs begin that follow that history.
    pub(crate) fn root(&mut self, history: u64) -> NodeId {
        *self.roots.entry(history).or_insert_with(|| push(&mut self.nodes))
    }

    pub(crate) fn known(&self, node: NodeId) -> Known {
        match &self.nodes[node.0] {
            Node::Read { line, .. } => Known::Reads(*line),
            Node::Ran(ran) => Known::Ran(*ran),
            Node::Unknown => Known::Nothing,
        }
    }

    /// Where a run goes on that read this content at a node that reads.
    pub(crate) fn child(&mut self, node: NodeId, content: &Line) -> NodeId {
        let next = NodeId(self.nodes.len());
        let Node::Read { first, .. } = &mut self.nodes[node.0] else {
            return node;
        };
        let child = match first {
            None => first.insert((*content, next)).1,
            Some((known, child)) if known == content => *child,
            Some(_) => *self.others.entry(fingerprint(node.0 as u64, content)).or_insert(next),
        };
        if child == next {
            push(&mut self.nodes);
        }
        child
    }

    /// Records a run on `image` from a node on, to which reading the lines of `path` led: it read `lines`.
    pub(crate) fn insert(
        &mut self,
        mut node: NodeId,
        path: &[u64],
        lines: &LineList,
        image: &Image,
        ran: Ran,
    ) {
        let read = |line: u64| {
            self.nodes[node.0] = Node::Read { line, first: None };
            node = self.child(node, image.line(line));
        };
        if lines.iter().take(path.len()).eq(path) {
            lines.iter().skip(path.len()).copied().for_each(read);
        } else {
            // The crashes inside this run read these lines later than the crashes inside another run that led here.
            let before: LineSet = path.iter().copied().collect();
            lines.iter().copied().filter(|line| !before.contains(line)).for_each(read);
        }
        self.nodes[node.0] = Node::Ran(ran);
    }
}

fn push(nodes: &mut Vec<Node>) -> NodeId {
    nodes.push(Node::Unknown);
    NodeId(nodes.len() - 1)
}

/// States by their hashes, each with the number of the history that it was found after, and how many more crashes were
/// tried inside of the run that looked at it.
#[derive(Default)]
pub(super) struct States {
    known: Mutex<HashMap<(usize, u64), usize>>,
    histories: AtomicUsize,
}

impl States {
    /// Notes a state that a run found in which `inside` more crashes are tried; whether it was not looked at after that
    /// history, with as many.
    pub(super) fn note(&self, history: usize, inside: usize, state: &impl Hash) -> bool {
        let mut hasher = DefaultHasher::new();
        state.hash(&mut hasher);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (history, hasher.finish());
        let is_new = known.get(&key).is_none_or(|&tried| tried < inside);
        if is_new {
            known.insert(key, inside);
        }
        is_new
    }

    /// The number of a history that no other one has.
    pub(super) fn fresh_history(&self) -> usize {
        usize::MAX - self.histories.fetch_add(1, Ordering::Relaxed)
    }

    /// How many were found.
    pub(super) fn count(&self) -> usize {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
