// Closed-loop load for an OpenAI-compatible server on loopback: each client sends its next request when the last answer
// has ended.
//
//   loadgen PORT CLIENTS REQUESTS BODY_FILE [PATH] [PID ...]
//
// Prints one JSON line: what was completed, requests and SSE events a second, percentiles of the time to the first event and to the
// end (ms), and for each PID the CPU seconds it used meanwhile, so that cost per event can be compared on a noisy machine.
// Every "@@N@@" in BODY_FILE becomes the request's number, so that prompts can differ.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

// A server that says nothing for this long is stuck.
constexpr double stall_seconds = 60;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// User and system seconds of all threads, ended ones included; 0 if there is no such process.
double cpu_seconds(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const auto name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(line.substr(name_end + 2));
  std::string field;
  long ticks = 0;
  for (int i = 0; i <= 12 && fields >> field; i++)
    if (i >= 11) ticks += std::atol(field.c_str());
  return static_cast<double>(ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double percentile_ms(std::vector<double>& seconds, double q) {
  if (seconds.empty()) return -1;
  const auto k = std::min(seconds.size() - 1, static_cast<size_t>(q * static_cast<double>(seconds.size())));
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<long>(k), seconds.end());
  return seconds[k] * 1e3;
}

struct Client {
  int fd = -1;
  bool busy = false;
  bool reused = false;  // the connection, by this request
  // Request
  std::string out;
  size_t written = 0;
  double started = 0;
  // Answer: `in` is what was not looked at yet
  std::string in;
  bool has_head = false;
  bool chunked = false;
  bool closes = false;
  long length = -1;
  long events = 0;
  double first_event = -1;
};

struct Totals {
  long sent = 0, done = 0, errors = 0, events = 0, bytes = 0;
  std::vector<double> first, whole;
};

class Load {
 public:
  Load(int port, int clients, long requests, std::string body, std::string path)
      : port_(port), requests_(requests), body_(std::move(body)), path_(std::move(path)), clients_(clients) {}

  Totals run() {
    epoll_ = epoll_create1(0);
    for (Client& client : clients_) {
      open(client);
      next(client, false);
    }
    std::vector<epoll_event> ready(256);
    last_heard_ = now();
    while (totals_.done + totals_.errors < requests_) {
      const int n = epoll_wait(epoll_, ready.data(), static_cast<int>(ready.size()), 1000);
      if (now() - last_heard_ > stall_seconds) {
        std::fprintf(stderr, "stalled: %ld done, %ld errors of %ld\n", totals_.done, totals_.errors, requests_);
        break;
      }
      for (int i = 0; i < n; i++) serve(*static_cast<Client*>(ready[i].data.ptr));
    }
    return std::move(totals_);
  }

 private:
  void open(Client& client) {
    client.fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(client.fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      std::perror("connect");
      std::exit(1);
    }
    const int on = 1;
    setsockopt(client.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(client.fd, F_SETFL, O_NONBLOCK);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLET;
    event.data.ptr = &client;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, client.fd, &event);
  }

  std::string request(long number) const {
    static const std::string mark = "@@N@@";
    std::string body = body_;
    for (size_t at; (at = body.find(mark)) != std::string::npos;) body.replace(at, mark.size(), std::to_string(number));
    return "POST " + path_ + " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" +
           "Accept: text/event-stream\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }

  // The client's next request, on a new connection if the old one is closed.
  void next(Client& client, bool closed) {
    const bool reused = client.busy && !closed && !client.closes;
    if (closed || client.closes) {
      close(client.fd);
      open(client);
    }
    const int fd = client.fd;
    client = Client{};
    client.fd = fd;
    client.reused = reused;
    if (totals_.sent >= requests_) return;
    client.busy = true;
    client.out = request(totals_.sent++);
    client.started = now();
    flush(client);
  }

  // A server may close a kept connection just as a request goes out on it. It answered nothing, so the request is sent again.
  void again(Client& client) {
    close(client.fd);
    open(client);
    client.reused = false;
    client.written = 0;
    flush(client);
  }

  static void flush(Client& client) {
    while (client.written < client.out.size()) {
      const ssize_t n =
          send(client.fd, client.out.data() + client.written, client.out.size() - client.written, MSG_NOSIGNAL);
      if (n <= 0) return;
      client.written += static_cast<size_t>(n);
    }
  }

  void serve(Client& client) {
    if (client.busy) flush(client);
    const bool closed = drain(client);
    if (!client.busy) {
      if (closed) {
        close(client.fd);
        open(client);
      }
      return;
    }
    if (!client.has_head) {
      const size_t end = client.in.find("\r\n\r\n");
      if (end == std::string::npos) {
        if (closed) client.reused && client.in.empty() ? again(client) : failed(client);
        return;
      }
      if (!read_head(client, end)) return failed(client);
    }
    if (answered(client, closed)) {
      totals_.done++;
      totals_.events += client.events;
      totals_.first.push_back(client.first_event < 0 ? now() - client.started : client.first_event);
      totals_.whole.push_back(now() - client.started);
      next(client, closed);
    } else if (closed) {
      failed(client);
    }
  }

  // Reads all there is. True: the server has closed the connection.
  bool drain(Client& client) {
    static char buffer[1 << 16];
    for (;;) {
      const ssize_t n = read(client.fd, buffer, sizeof buffer);
      if (n <= 0) return n == 0 || (errno != EAGAIN && errno != EINTR);
      last_heard_ = now();
      totals_.bytes += n;
      client.in.append(buffer, static_cast<size_t>(n));
    }
  }

  void failed(Client& client) {
    totals_.errors++;
    next(client, true);
  }

  static bool read_head(Client& client, size_t end) {
    std::string head = client.in.substr(0, end);
    for (char& c : head) c = static_cast<char>(std::tolower(c));
    if (head.find(" 200") > 12) {
      static int shown = 0;
      if (shown++ < 3) std::fprintf(stderr, "%s\n", client.in.substr(0, 400).c_str());
      return false;
    }
    client.has_head = true;
    client.chunked = head.find("chunked") != std::string::npos;
    client.closes = head.find("connection: close") != std::string::npos;
    const size_t length = head.find("content-length:");
    if (length != std::string::npos) client.length = std::atol(head.c_str() + length + 15);
    client.in.erase(0, end + 4);
    return true;
  }

  // Counts what came; true once the answer is whole.
  bool answered(Client& client, bool closed) {
    if (!client.chunked && client.length >= 0) {
      if (static_cast<long>(client.in.size()) < client.length) return false;
      client.events++;
      return true;
    }
    const size_t counted = count_events(client);
    if (!client.chunked) {
      // Neither a length nor chunks: the end of the connection ends the answer.
      client.in.erase(0, counted);
      return closed;
    }
    if (ends_chunked(client.in)) return true;
    // Enough is kept to find an event or the last chunk that arrives in two pieces.
    if (client.in.size() > 16) client.in.erase(0, std::max(counted, client.in.size() - 8));
    return false;
  }

  // Counts whole "data: {" and returns where to go on. An event may not cross the border of two chunks: no server here cuts one.
  static size_t count_events(Client& client) {
    size_t from = 0;
    for (size_t at; (at = client.in.find("data: {", from)) != std::string::npos; from = at + 7) {
      if (client.first_event < 0) client.first_event = now() - client.started;
      client.events++;
    }
    return from;
  }

  static bool ends_chunked(const std::string& in) {
    static const std::string last = "0\r\n\r\n", after_chunk = "\r\n0\r\n\r\n";
    const auto ends_with = [&in](const std::string& tail) {
      return in.size() >= tail.size() && in.compare(in.size() - tail.size(), tail.size(), tail) == 0;
    };
    return in.size() == last.size() ? ends_with(last) : ends_with(after_chunk);
  }

  const int port_;
  const long requests_;
  const std::string body_, path_;
  std::vector<Client> clients_;
  int epoll_ = -1;
  double last_heard_ = 0;
  Totals totals_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: loadgen PORT CLIENTS REQUESTS BODY_FILE [PATH] [PID ...]\n");
    return 2;
  }
  std::ifstream file(argv[4]);
  std::stringstream body;
  body << file.rdbuf();
  std::vector<int> pids;
  for (int i = 6; i < argc; i++) pids.push_back(std::atoi(argv[i]));

  Load load(std::atoi(argv[1]), std::atoi(argv[2]), std::atol(argv[3]), body.str(),
            argc > 5 ? argv[5] : "/v1/chat/completions");
  std::vector<double> cpu_before;
  for (int pid : pids) cpu_before.push_back(cpu_seconds(pid));
  const double started = now();
  Totals t = load.run();
  const double seconds = now() - started;

  double cpu = 0;
  std::string by_pid;
  for (size_t i = 0; i < pids.size(); i++) {
    const double used = cpu_seconds(pids[i]) - cpu_before[i];
    cpu += used;
    by_pid += (i > 0 ? ",\"" : "\"") + std::to_string(pids[i]) + "\":" + std::to_string(used);
  }
  std::printf(
      "{\"done\":%ld,\"errors\":%ld,\"seconds\":%.3f,\"req_s\":%.1f,\"events\":%ld,\"events_s\":%.0f,\"mb\":%.1f,"
      "\"ttft_ms\":{\"p50\":%.2f,\"p99\":%.2f},\"latency_ms\":{\"p50\":%.2f,\"p99\":%.2f},"
      "\"cpu_s\":%.2f,\"cpu_us_per_event\":%.2f,\"cpu_us_per_req\":%.1f,\"cpu\":{%s}}\n",
      t.done, t.errors, seconds, static_cast<double>(t.done) / seconds, t.events,
      static_cast<double>(t.events) / seconds, static_cast<double>(t.bytes) / 1e6, percentile_ms(t.first, .5),
      percentile_ms(t.first, .99), percentile_ms(t.whole, .5), percentile_ms(t.whole, .99), cpu,
      t.events > 0 ? cpu * 1e6 / static_cast<double>(t.events) : 0,
      t.done > 0 ? cpu * 1e6 / static_cast<double>(t.done) : 0, by_pid.c_str());
}
