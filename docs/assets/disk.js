// A browser starts no worker for a page that was opened from the disk, and the search would be hidden: there the
// worker's script runs in a frame that nobody sees.  Pages that come from a server have a worker of their own.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe"), early = []
      frame.hidden = true
      document.body.appendChild(frame)
      const inner = frame.contentWindow
      inner.document.open()
      inner.document.write("<!doctype html><html><body></body></html>")
      inner.document.close()
      const told = (target, data) => target.dispatchEvent(new MessageEvent("message", { data }))
      inner.postMessage = data => setTimeout(() => told(this, data))
      inner.importScripts = (...scripts) => scripts.reduce((before, each) => before.then(() => loaded(each)), Promise.resolve())
      const loaded = source => new Promise((done, failed) => {
        const script = inner.document.createElement("script")
        Object.assign(script, { src: source, onload: done, onerror: failed })
        inner.document.body.appendChild(script)
      })
      this.postMessage = data => early.push(data)
      this.terminate = () => frame.remove()
      loaded(url).then(() => {
        this.postMessage = data => setTimeout(() => told(inner, data))
        early.forEach(data => this.postMessage(data))
      }, error => this.dispatchEvent(new ErrorEvent("error", { error })))
    }
  }
  window.Worker = window.IFrameWorker
}
