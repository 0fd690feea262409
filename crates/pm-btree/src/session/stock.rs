//! Space that is set aside for changes that wait, so that they find room when they are committed.

use super::classes::Class;
use super::session::Session;
use super::space::{RecordSpace, Reserved, SetAside};
use crate::error::WriteError;
use pm_core::Pmem;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Units that no other change takes.
#[derive(Debug, Default)]
pub(crate) struct Stock {
    nodes: RefCell<Vec<SetAside>>,
    records: RefCell<BTreeMap<RecordSpace, Vec<SetAside>>>,
}

impl Stock {
    /// Takes exactly this space: a record has the class or the block of its length, which its release and an open rely on.
    fn take_record(&self, space: RecordSpace) -> Option<SetAside> {
        self.records.borrow_mut().get_mut(&space)?.pop()
    }

    /// Takes a record that has room for `len` bytes.
    fn take_at_least(&self, len: u64) -> Option<SetAside> {
        let least = RecordSpace { bytes: len, is_long: false };
        self.records.borrow_mut().range_mut(least..).find_map(|(_, units)| units.pop())
    }

    /// Sets a record of `len` bytes aside.
    pub(crate) fn add_record<P: Pmem>(&self, session: &Session<P>, len: u64) -> Result<(), WriteError> {
        let record = session.space.reserve_record(&session.heap, len)?;
        self.records.borrow_mut().entry(session.space.space_of(len)).or_default().push(record.set_aside());
        Ok(())
    }

    /// Sets a node aside.
    pub(crate) fn add_node<P: Pmem>(&self, session: &Session<P>) -> Result<(), WriteError> {
        let node = session.space.reserve_unit(&session.heap, Class::NODES)?;
        self.nodes.borrow_mut().push(node.set_aside());
        Ok(())
    }

    /// Releases a record of `len` bytes that is not needed any more.
    pub(crate) fn release_record<P: Pmem>(&self, session: &Session<P>, len: u64) {
        drop(self.take_record(session.space.space_of(len)).map(|unit| session.space.resume(unit)));
    }

    /// Releases all.
    pub(crate) fn release<P: Pmem>(&self, session: &Session<P>) {
        let records = self.records.take().into_values().flatten();
        self.nodes.take().into_iter().chain(records).for_each(|unit| drop(session.space.resume(unit)));
    }
}

/// Where a change takes its space from: what was set aside for it, and the free space of the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Supply<'c, P: Pmem> {
    pub(crate) session: &'c Session<P>,
    stock: Option<&'c Stock>,
}

impl<'c, P: Pmem> Supply<'c, P> {
    /// The free space of the store.
    pub(crate) const fn of(session: &'c Session<P>) -> Self {
        Self { session, stock: None }
    }

    /// A stock, and then the free space of the store.
    pub(crate) const fn with_stock(session: &'c Session<P>, stock: &'c Stock) -> Self {
        Self { session, stock: Some(stock) }
    }

    /// Takes a record of at least `len` bytes.
    pub(crate) fn record(&self, len: u64) -> Result<Reserved<'c>, WriteError> {
        let space = &self.session.space;
        let set_aside = self.stock.and_then(|stock| stock.take_record(space.space_of(len)));
        match set_aside {
            Some(unit) => Ok(space.resume(unit)),
            None => space.reserve_record(&self.session.heap, len),
        }
    }

    /// Takes space for a separator of `len` bytes, perhaps a record of a class that has room for more.
    pub(crate) fn separator(&self, len: u64) -> Result<Reserved<'c>, WriteError> {
        match self.stock.and_then(|stock| stock.take_at_least(len)) {
            Some(unit) => Ok(self.session.space.resume(unit)),
            None => self.session.space.reserve_record(&self.session.heap, len),
        }
    }

    /// Takes a node, whose bytes are zero.
    pub(crate) fn node(&self) -> Result<Reserved<'c>, WriteError> {
        let set_aside = self.stock.and_then(|stock| stock.nodes.borrow_mut().pop());
        match set_aside {
            Some(unit) => Ok(self.session.space.zeroed(&self.session.heap, self.session.space.resume(unit))),
            None => self.session.space.reserve_node(&self.session.heap),
        }
    }
}
