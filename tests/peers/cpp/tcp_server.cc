// The wire alone: a TCP server that answers REQUEST bytes with RESPONSE bytes, whatever is in
// them, over and over. Nothing is parsed, and what is sent was made once.
//
//   tcp_server
//
// A connection begins with two little-endian 64-bit numbers, REQUEST and RESPONSE. The server
// prints its address and ends when stdin does.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

bool Receive(int connection, char* to, size_t size) {
  while (size > 0) {
    const ssize_t received = recv(connection, to, size, 0);
    if (received <= 0) return false;
    to += received;
    size -= received;
  }
  return true;
}

bool Send(int connection, const char* from, size_t size) {
  while (size > 0) {
    const ssize_t sent = send(connection, from, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    from += sent;
    size -= sent;
  }
  return true;
}

void Serve(int connection) {
  const int on = 1;
  setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  uint64_t sizes[2];
  if (Receive(connection, reinterpret_cast<char*>(sizes), sizeof(sizes))) {
    std::vector<char> request(sizes[0]);
    const std::vector<char> response(sizes[1], 'x');
    while (Receive(connection, request.data(), request.size()) &&
           Send(connection, response.data(), response.size())) {
    }
  }
  close(connection);
}

}  // namespace

int main() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) || listen(listener, 16) ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size)) {
    std::perror("cannot listen");
    return 1;
  }
  std::printf("127.0.0.1:%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  std::thread([=] {
    for (;;) std::thread(Serve, accept(listener, nullptr, nullptr)).detach();
  }).detach();
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  std::_Exit(0);
}
