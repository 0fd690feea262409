//! The memory of recoveries that ran: the lines that they read, the contents that they started from, the states that they found.
//!
//! A recovery is a function of the bytes that it reads. The reads form a decision tree: a node for each line that a recovery reads, in
//! order, with a branch for each content found there; the leaves are the runs. Two images that lead to one leaf are recovered from
//! alike, whatever their other contents.

use crate::image::Image;
use crate::line::{Line, LineList, LineSet, PrintMap, fingerprint};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The maximal number of nodes of a tree.
const MAX_NODES: usize = 1 << 21;

/// The memory of one exploration, or of one part of it.
#[derive(Default)]
pub(crate) struct Memory {
    /// By depth of crashes: the decision trees.
    memos: Vec<Memo>,
    /// Numbered over all runs, as the memos cover all.
    pub(super) visits: Visits,
    /// By contents and history: how many more crashes were tried inside the recovery. Images are identified by fingerprints over one base.
    tried_inside: FxHashMap<(u128, usize), usize>,
    /// By state and history: the maximal number of kills tried from there.
    killed: HashMap<(u128, usize), usize>,
    /// Shared with the explorations of other parts of the run.
    states: Arc<States>,
}

/// The acknowledgements of a run.
#[derive(Clone, Copy)]
pub(crate) struct History<'h, A> {
    pub(crate) acked: &'h [A],
    /// For each count of acknowledgements: a number that identifies exactly these, in this order.
    pub(crate) numbers: &'h [usize],
}

impl Memory {
    /// For another part of the same run: shares the states that recoveries found, but not the decision trees.
    pub(super) fn sharing_states(other: &Self) -> Self {
        Self { states: Arc::clone(&other.states), ..Self::default() }
    }

    pub(super) const fn states(&self) -> &Arc<States> {
        &self.states
    }

    /// The decision trees after `level` crashes before the last.
    pub(super) fn memo(&mut self, level: usize) -> &mut Memo {
        if self.memos.len() <= level {
            self.memos.resize_with(level + 1, Memo::default);
        }
        &mut self.memos[level]
    }

    /// Notes a recovery from the contents, with up to `inside` crashes of the recovery. Returns whether that is new.
    pub(super) fn is_new(&mut self, fingerprint: u128, history: usize, inside: usize) -> bool {
        let key = (fingerprint, history);
        let is_new = self.tried_inside.get(&key).is_none_or(|&tried| tried < inside);
        if is_new {
            self.tried_inside.insert(key, inside);
        }
        is_new
    }

    /// Notes a kill in that state, with up to `kills` kills in all. Returns whether that is new.
    pub(super) fn is_new_kill(&mut self, fingerprint: u128, history: usize, kills: usize) -> bool {
        let tried = self.killed.entry((fingerprint, history)).or_default();
        let is_new = *tried < kills;
        *tried = kills.max(*tried);
        is_new
    }

    /// Notes a recovery from the contents.
    pub(super) fn note_recovered(&mut self, fingerprint: u128, history: usize) {
        self.tried_inside.entry((fingerprint, history)).or_default();
    }

    /// The number of different contents recovered from; equal contents after different acknowledgements count separately.
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

/// A run at a leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    /// How many more crashes were tried inside it.
    pub(crate) inside: usize,
    /// If some of them were left out because a visit of an outer point tries the same images: that visit. The result holds within the
    /// visit, and generally once the visit is done.
    pub(crate) only_in: Option<u64>,
}

enum Node {
    /// Most lines have one content wherever they are read: that child is stored in place, others in a table.
    Read {
        line: u64,
        first: Option<(Line, NodeId)>,
    },
    Ran(Ran),
    Unknown,
}

impl Ran {
    /// Whether it answers a visit that wants `inside` crashes.
    pub(crate) fn suffices(&self, inside: usize, visit: u64, visits: &Visits) -> bool {
        self.inside >= inside && self.only_in.is_none_or(|only| only == visit || visits.is_done(only))
    }
}

/// The visits of points, and those that have tried everything.
#[derive(Default)]
pub(super) struct Visits {
    last: u64,
    done: FxHashSet<u64>,
    /// Visits that are complete as soon as an enclosing visit is, because they left out images that it tries.
    depending: Vec<u64>,
}

impl Visits {
    /// A new number.
    pub(crate) const fn begin(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The visit has tried everything, or left it to an enclosing visit.
    pub(crate) fn all_tried(&mut self, visit: u64, is_inside_another: bool) {
        self.depending.push(visit);
        if !is_inside_another {
            let inside = self.depending.iter().position(|&depending| depending >= visit);
            self.done.extend(self.depending.drain(inside.unwrap_or(0)..));
        }
    }

    /// The visit has tried only a part, so nothing can depend on it.
    pub(crate) fn some_tried(&mut self, visit: u64) {
        self.depending.retain(|&depending| depending < visit);
    }

    fn is_done(&self, visit: u64) -> bool {
        self.done.contains(&visit)
    }
}

/// The decision trees of one depth of crashes: one tree for each history of acknowledgements.
#[derive(Default)]
pub(super) struct Memo {
    /// Lines that differ between images. Reading another line decides nothing.
    watched: Arc<LineSet>,
    nodes: Vec<Node>,
    /// The children that are not the first of their parents, by the fingerprint of parent and content.
    others: PrintMap<NodeId>,
    roots: HashMap<u64, NodeId>,
}

impl Memo {
    /// The lines whose reads are to be recorded.
    pub(crate) const fn watched(&self) -> &Arc<LineSet> {
        &self.watched
    }

    /// Adds lines that differ between images, and forgets what was learnt without them.
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

    /// Whether the tree has its maximal size: 200 MB, or slightly more for a run that reads very many lines.
    pub(crate) const fn is_full(&self) -> bool {
        self.nodes.len() >= MAX_NODES
    }

    /// The root of the runs after that history.
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

    /// The node that follows a reading node if the line has this content.
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

    /// Records a run on `image` from a node on, which the lines of `path` led to: the run read `lines`.
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

/// States by their hashes, each with the number of its history, and how many more crashes were tried inside the run that looked at it.
#[derive(Default)]
pub(super) struct States {
    known: Mutex<HashMap<(usize, u64), usize>>,
    histories: AtomicUsize,
}

impl States {
    /// Notes a state found by a run with `inside` crashes inside. Returns whether no run with as many looked at it before after that history.
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

    /// A new number for a history.
    pub(super) fn fresh_history(&self) -> usize {
        usize::MAX - self.histories.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn count(&self) -> usize {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
