//! Every server-binding statement that a plainly configured server shows on the wire.

mod connack;
mod connect;
mod data;
mod disconnect;
mod properties;
mod publish;
mod qos;
mod retain;
mod session;
mod shared;
mod subscribe;
mod topics;
mod will;
