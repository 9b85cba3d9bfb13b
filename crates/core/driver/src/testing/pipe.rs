//! A connection in memory: a socket for the driver, and the client's end of it.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::rc::{Rc, Weak};

use crate::{Read, Ready, Socket};

/// The driver's end.
#[derive(Debug)]
pub struct Pipe(Rc<RefCell<Wire>>);

/// The client's end.
#[derive(Clone, Debug)]
pub struct PipeEnd(Rc<RefCell<Wire>>);

/// What is wrong with a socket: each is what a driver would make wrong that forgot something.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flaws {
    /// A write that is cut short says that it took everything.
    pub forgets_rest: bool,
    /// A read that left something says that it did not.
    pub hides_rest: bool,
    /// What it made itself does not ask to be sent.
    pub hides_own: bool,
    /// That a write may go on is not reported.
    pub stays_full: bool,
}

#[derive(Debug, Default)]
struct Wire {
    to_driver: Vec<u8>,
    to_client: Vec<u8>,
    /// Bytes that may lie in `to_client`.
    room: usize,
    /// It has layers that hand on so many bytes at a time. 0: it has none.
    portion: usize,
    /// Read by the layers, and not handed on.
    inner: Vec<u8>,
    /// What the layers have taken, and the socket has not.
    outer: Vec<u8>,
    /// Words of the layers' own that are still to be sent.
    own_unsent: usize,
    /// A write has fallen short since the client last took something.
    is_full: bool,
    /// Something has changed since the last report.
    has_edge: bool,
    client_is_done: bool,
    is_broken: bool,
    driver_is_done: bool,
    driver_is_gone: bool,
    /// Nothing is read or written for now.
    is_shut: bool,
    flaws: Flaws,
}

/// The source of readiness events.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) key: usize,
    wire: Weak<RefCell<Wire>>,
}

impl Pipe {
    /// `room`: what the driver can write before the client reads. `portion`: bytes that the layers
    /// of the socket hand on at a time; 0: it has none.
    pub fn new(room: usize, portion: usize, flaws: Flaws) -> (Self, PipeEnd) {
        let wire = Wire { room, portion, flaws, ..Wire::default() };
        let wire = Rc::new(RefCell::new(wire));
        (Self(wire.clone()), PipeEnd(wire))
    }

    /// As at a real queue, what is there already is reported at first.
    pub(super) fn watch(&self, key: usize) -> Watched {
        self.0.borrow_mut().has_edge = true;
        Watched { key, wire: Rc::downgrade(&self.0) }
    }
}

impl PipeEnd {
    /// The client sends.
    pub fn send(&self, bytes: &[u8]) {
        let mut wire = self.0.borrow_mut();
        if !wire.client_is_done && !wire.is_broken {
            wire.to_driver.extend_from_slice(bytes);
            wire.has_edge |= !bytes.is_empty();
        }
    }

    /// The client reads so many bytes at most.
    pub fn take(&self, count_max: usize) -> Vec<u8> {
        let mut wire = self.0.borrow_mut();
        let count = count_max.min(wire.to_client.len());
        let bytes: Vec<u8> = wire.to_client.drain(..count).collect();
        if wire.is_full && count > 0 {
            wire.is_full = false;
            wire.has_edge |= !wire.flaws.stays_full;
        }
        bytes
    }

    /// The client sends no more.
    pub fn finish(&self) {
        let mut wire = self.0.borrow_mut();
        wire.client_is_done = true;
        wire.has_edge = true;
    }

    /// The connection breaks, with all that was under way.
    pub fn cut(&self) {
        let mut wire = self.0.borrow_mut();
        wire.is_broken = true;
        wire.has_edge = true;
        wire.to_driver.clear();
        wire.to_client.clear();
    }

    /// Bytes on their way to the driver, and to the client.
    pub fn under_way(&self) -> (usize, usize) {
        let wire = self.0.borrow();
        (wire.to_driver.len() + wire.inner.len(), wire.to_client.len())
    }

    /// Bytes of the driver that the client has not taken, wherever they are.
    pub fn unread(&self) -> usize {
        let wire = self.0.borrow();
        wire.to_client.len() + wire.outer.len()
    }

    /// Has the driver ended its sending direction, or the connection?
    pub fn is_over(&self) -> bool {
        let wire = self.0.borrow();
        wire.driver_is_done || wire.driver_is_gone
    }

    /// Has the driver closed it?
    pub fn is_closed(&self) -> bool {
        self.0.borrow().driver_is_gone
    }

    /// From now on so much may lie before the client.
    pub fn widen(&self, room: usize) {
        let mut wire = self.0.borrow_mut();
        wire.room = room;
        if std::mem::take(&mut wire.is_full) {
            wire.has_edge |= !wire.flaws.stays_full;
        }
    }

    /// Do layers have something that they should have sent?
    pub fn has_unsent(&self) -> bool {
        let wire = self.0.borrow();
        wire.own_unsent > 0 || !wire.outer.is_empty()
    }
}

impl Watched {
    /// None: the driver has closed it. Some(None): nothing has changed.
    pub(super) fn take_edge(&self) -> Option<Option<Ready>> {
        let wire = self.wire.upgrade()?;
        let mut wire = wire.borrow_mut();
        if !std::mem::take(&mut wire.has_edge) {
            return Some(None);
        }
        let is_ending = wire.client_is_done || wire.is_broken;
        let is_writable = wire.room_left() > 0 || wire.is_broken;
        // As the kernel: a writer that finds no room is notified when there is some.
        wire.is_full |= !is_writable;
        Some(Some(Ready {
            key: self.key,
            is_readable: !wire.to_driver.is_empty() || is_ending,
            is_writable,
            is_ending,
        }))
    }

    pub(super) fn is_of(&self, end: &PipeEnd) -> bool {
        std::ptr::eq(self.wire.as_ptr(), Rc::as_ptr(&end.0))
    }

    pub(super) fn shut(&self, is_shut: bool) {
        let Some(wire) = self.wire.upgrade() else { return };
        let mut wire = wire.borrow_mut();
        wire.is_shut = is_shut;
        wire.has_edge |= !is_shut;
    }

    pub(super) fn has_edge(&self) -> bool {
        self.wire.upgrade().is_some_and(|wire| wire.borrow().has_edge)
    }
}

impl Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Read> {
        if self.is_shut {
            return Ok(Read::WouldBlock);
        }
        if self.is_broken {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if self.portion > 0 && self.inner.is_empty() && !self.to_driver.is_empty() {
            std::mem::swap(&mut self.inner, &mut self.to_driver);
            // As a WebSocket answers a ping.
            self.own_unsent += 1;
        }
        let from = if self.portion == 0 { &mut self.to_driver } else { &mut self.inner };
        if from.is_empty() {
            return Ok(if self.client_is_done { Read::Closed } else { Read::WouldBlock });
        }
        let portion = if self.portion == 0 { usize::MAX } else { self.portion };
        let count = buffer.len().min(from.len()).min(portion);
        buffer[..count].copy_from_slice(&from[..count]);
        from.drain(..count);
        Ok(Read::Bytes(count))
    }

    fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.is_broken || self.driver_is_done {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let wanted: usize = slices.iter().map(|slice| slice.len()).sum();
        if self.portion > 0 {
            // As a layer of TLS, which takes whole records while they can be sent.
            let mut bytes = slices.iter().flat_map(|slice| slice.iter().copied());
            let mut took = 0;
            while self.flush() && took < wanted {
                self.outer.extend(bytes.by_ref().take(self.portion));
                took = wanted.min(took + self.portion);
            }
            return Ok(took);
        }
        let took = wanted.min(self.room_left());
        let mut left = took;
        for slice in slices {
            let (taken, _) = slice.split_at(left.min(slice.len()));
            self.to_client.extend_from_slice(taken);
            left -= taken.len();
        }
        self.is_full |= took < wanted;
        Ok(if self.flaws.forgets_rest && took > 0 { wanted } else { took })
    }

    fn room_left(&self) -> usize {
        let room = if self.is_shut { 0 } else { self.room };
        room.saturating_sub(self.to_client.len())
    }

    /// True: nothing waits any more.
    fn flush(&mut self) -> bool {
        let count = self.outer.len().min(self.room_left());
        self.to_client.extend(self.outer.drain(..count));
        if self.outer.is_empty() && self.room_left() > 0 {
            self.own_unsent = 0;
        }
        let is_done = self.outer.is_empty() && self.own_unsent == 0;
        self.is_full |= !is_done;
        is_done
    }
}

impl Socket for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Read> {
        self.0.borrow_mut().read(buffer)
    }

    fn read_onto(&mut self, bytes: &mut Vec<u8>) -> io::Result<Read> {
        let before = bytes.len();
        let mut buffer = vec![0; bytes.capacity() - before];
        let read = self.0.borrow_mut().read(&mut buffer)?;
        if let Read::Bytes(count) = read {
            bytes.extend_from_slice(&buffer[..count]);
        }
        Ok(read)
    }

    fn is_drained(&self, count: usize, room: usize) -> bool {
        let wire = self.0.borrow();
        let is_drained = match wire.portion {
            0 => count < room,
            _ => wire.inner.is_empty() && wire.to_driver.is_empty(),
        };
        is_drained || wire.flaws.hides_rest
    }

    fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.borrow_mut().write(slices)
    }

    fn wants_write(&self) -> bool {
        let wire = self.0.borrow();
        (wire.own_unsent > 0 || !wire.outer.is_empty()) && !wire.flaws.hides_own
    }

    fn flush(&mut self) -> io::Result<bool> {
        let mut wire = self.0.borrow_mut();
        if wire.is_broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(wire.flush())
    }

    fn shutdown(&mut self) -> io::Result<()> {
        self.0.borrow_mut().driver_is_done = true;
        Ok(())
    }

    fn has_layers(&self) -> bool {
        self.0.borrow().portion > 0
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.0.borrow_mut().driver_is_gone = true;
    }
}
