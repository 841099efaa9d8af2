//! What a request costs after all: by its response, and by its handler's permit. In memory and on Redis,
//! the same tests.

mod failures;
mod handlers;
mod losses;
mod random;
mod rates;
mod rejections;
mod responses;
mod sizes;
mod wire;
