//! The HTTP middleware, as clients and services see it.

mod service;
mod store;

mod acquire;
mod addresses;
mod answers;
mod bodies;
mod bugs;
mod clients;
mod combinations;
mod conditions;
mod costs;
mod delays;
mod example_server;
mod explain;
mod failures;
mod fairness;
mod grpc;
mod headers;
mod keys;
mod lists;
mod nested;
mod permits;
mod policies;
mod programs;
mod readiness;
mod repeated;
mod resolve;
mod routes;
mod services;
mod spoofing;
mod streams;
mod subrequests;
mod tables;
mod untrusted;
mod whitespace;
